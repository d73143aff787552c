"""Attention over the paged cache in torch operations: the CPU backend. `reference.paged_attention` is its specification.

A request's answer must not depend on what else runs, nor on how its prompt was cut into chunks, to the last bit. A matrix
product's rounding depends on its shape, so every query token is computed with shapes that follow from its position (and the
layer's window) alone: its keys are cut into tiles of 256 tokens counted from the sequence's start, the last tile is rounded up to
a multiple of 64, what isn't seen is masked, and tiles are summed in order. `attention_plan` decides this; here it is carried out.
Query heads that share a KV head are made even in number: each thread has its own piece of one buffer inside the operator, and on
some machines a product that begins at 8 bytes past a multiple of 16 rounds differently (measured: docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagemill_server.model.attention_plan import LONGEST_TILE, Chunk, DecodeTiles, Plan, fresh_blocks, plan, unit_tokens
from pagemill_server.model.interface import AttentionMetadata, LayerAttention, StepAttention
from pagemill_server.model.kv_pool import KVPool

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # its public face does not return the log-sum-exp


class TorchAttention:
    """The backend; one an engine. `layers` says what each layer's attention is; left out, all see everything."""

    def __init__(self, pool: KVPool, layers: Sequence[LayerAttention] | None = None) -> None:
        self._pool = pool
        self._layers = tuple(layers) if layers is not None else (LayerAttention(),) * len(pool.keys)
        self._windows = tuple(dict.fromkeys(layer.window for layer in self._layers))
        unit = unit_tokens(pool.block_size)
        self._keys, self._values = (tuple(_in_units(c, unit) for c in caches) for caches in (pool.keys, pool.values))
        self._masks = _Masks(pool.keys[0].dtype, pool.keys[0].device)

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """Decide the step's tiles once for all layers of a window."""
        fresh = fresh_blocks(metadata)
        steps = {}
        for window in self._windows:
            step = plan(metadata, self._pool.null_block, window)
            steps[window] = step, [self._masks.decode(tiles) for tiles in step.decode_tiles]

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
            self._pool.write(layer, key, value, metadata.slot_mapping, fresh)
            kind = self._layers[layer]
            step, masks = steps[kind.window]
            return self._read(query, layer, step, masks, kind.scale)

        return attend

    def _read(
        self, query: torch.Tensor, layer: int, step: Plan, masks: list[torch.Tensor | None], scale: float | None
    ) -> torch.Tensor:
        cache = _LayerCache(self._keys[layer], self._values[layer], scale)
        grouped = _even(query.view(query.shape[0], cache.keys.shape[0], -1, query.shape[-1]))
        out = torch.empty_like(grouped, memory_format=torch.contiguous_format)
        if step.decode_rows is not None:
            single = grouped.index_select(0, step.decode_rows) if step.chunks else grouped
            done = _decode(single, cache, step.decode_tiles, masks, step.most_tiles)
            if step.chunks:
                out.index_copy_(0, step.decode_rows, done)
            else:
                out = done
        for chunk in step.chunks:
            _prefill(grouped, cache, chunk, self._masks, out)
        return out[:, :, : query.shape[1] // out.shape[1]].reshape(query.shape).contiguous()


@dataclass(frozen=True, slots=True)
class _LayerCache:
    """One layer's pool in units [num_kv_heads, units, tokens a unit, head_dim], and its scale."""

    keys: torch.Tensor
    values: torch.Tensor
    scale: float | None


class _Masks:
    """Additive masks of a tile. Row r of `up_to` hides what is after key r, row r of `from_on` what is before it."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        hidden = torch.full((LONGEST_TILE, LONGEST_TILE), float("-inf"), dtype=dtype, device=device)
        self.up_to, self.from_on = hidden.triu(1), hidden.tril(-1)

    def decode(self, tiles: DecodeTiles) -> torch.Tensor | None:
        """[N, 1, 1, length], or None when all is seen."""
        parts = [
            table.index_select(0, seen)
            for table, seen in ((self.up_to, tiles.last_seen), (self.from_on, tiles.first_seen))
            if seen is not None
        ]
        return sum(parts[1:], parts[0])[:, None, None, : tiles.length] if parts else None

    def rows(self, count: int, length: int, first_seen: int | None, last_seen: int | None) -> torch.Tensor | None:
        """[count, 1, 1, length] for rows that follow each other, or None when all is seen."""
        parts = [
            table[seen : seen + count, :length]
            for table, seen in ((self.up_to, last_seen), (self.from_on, first_seen))
            if seen is not None
        ]
        return sum(parts[1:], parts[0])[:, None, None] if parts else None


def _even(query: torch.Tensor) -> torch.Tensor:
    """[T, num_kv_heads, group, head_dim] with an even group: an odd one's last is there twice."""
    return torch.cat((query, query[:, :, -1:]), dim=2) if query.shape[2] % 2 else query


def _decode(
    query: torch.Tensor,  # [S, num_kv_heads, group, head_dim]: one token of each sequence
    cache: _LayerCache,
    tiles: tuple[DecodeTiles, ...],
    masks: list[torch.Tensor | None],
    most_tiles: int,
) -> torch.Tensor:  # as query
    """All sequences' single tokens at once: tiles of equal length are one call, whichever sequence they belong to."""
    if len(tiles) == 1:
        return _decode_tiles(query, cache, tiles[0], masks[0])[0]
    outs = query.new_zeros((most_tiles, *query.shape))
    sums = torch.full((most_tiles, *query.shape[:-1]), float("-inf"), dtype=torch.float32, device=query.device)
    for some, mask in zip(tiles, masks, strict=True):
        out, log_sum = _decode_tiles(query.index_select(0, some.rows), cache, some, mask)
        outs[some.order, some.rows] = out
        sums[some.order, some.rows] = log_sum
    return _merge(outs, sums)


def _decode_tiles(
    query: torch.Tensor,  # [tiles, num_kv_heads, group, head_dim]
    cache: _LayerCache,
    tiles: DecodeTiles,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (_gather(c, tiles.units, query.shape[0]).transpose(0, 1) for c in (cache.keys, cache.values))
    return _flash(query, keys, values, 0.0, False, attn_mask=mask, scale=cache.scale)  # type: ignore[no-any-return]


def _prefill(
    query: torch.Tensor,  # [T, num_kv_heads, group, head_dim]
    cache: _LayerCache,
    chunk: Chunk,
    masks: _Masks,
    out: torch.Tensor,  # as query; the chunk's rows are filled
) -> None:
    """Several tokens of one sequence: each is a batch entry that sees the same keys, so nothing is copied per token."""
    kv_heads, head_dim = cache.keys.shape[0], cache.keys.shape[-1]
    keys, values = (_gather(c, chunk.units, 1)[:, 0] for c in (cache.keys, cache.values))
    for span in chunk.spans:
        count = span.last_row - span.first_row
        rows = query[span.first_row : span.last_row]
        parts = []
        for start in range(span.first_key, span.keys, LONGEST_TILE):
            end = min(start + LONGEST_TILE, span.keys)
            shape = (count, kv_heads, end - start, head_dim)
            first_seen = span.first_seen if start == span.first_key else None
            mask = masks.rows(count, end - start, first_seen, span.last_seen if end == span.keys else None)
            part = keys[:, start:end].expand(shape), values[:, start:end].expand(shape)
            parts.append(_flash(rows, *part, 0.0, False, attn_mask=mask, scale=cache.scale))
        done = parts[0][0]
        if len(parts) > 1:
            done = _merge(torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts]))
        out[span.first_row : span.last_row].copy_(done)


def _in_units(cache: torch.Tensor, unit: int) -> torch.Tensor:
    """[num_kv_heads, blocks, block_size, head_dim] → [num_kv_heads, units, tokens a unit, head_dim], the same memory."""
    return cache.view(cache.shape[0], -1, unit, cache.shape[-1])


def _gather(cache: torch.Tensor, units: torch.Tensor, tiles: int) -> torch.Tensor:
    """Units [tiles * n] of a cache as runs of tokens: [num_kv_heads, tiles, tokens, head_dim]."""
    return cache.index_select(1, units).view(cache.shape[0], tiles, -1, cache.shape[-1])


def _merge(outs: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Join tiles of the same queries: outs [tiles, ..., head_dim], sums (log-sum-exp, -inf: no such tile) [tiles, ...].

    Summed one tile after another: a reduction over the tiles would round differently for different numbers of them.
    """
    weights = (sums - sums.amax(0)).exp().unsqueeze(-1)
    total = outs[0] * weights[0]
    norm = weights[0].clone()
    for out, weight in zip(outs[1:], weights[1:], strict=True):
        total += out * weight
        norm += weight
    return (total / norm).to(outs.dtype)
