"""Attention over the paged cache in torch operations: the CPU backend. `reference.paged_attention` is its specification.

A request's answer must not depend on what else runs, nor on how its prompt was cut into chunks, to the last bit. A matrix
product's rounding depends on its shape, so every query token is computed with shapes that follow from its position alone: its
keys are cut into tiles of 256 tokens counted from the sequence's start, the last tile is rounded up to a multiple of 64 and
masked, and tiles are summed in order. `attention_plan` decides this; here it is carried out.
"""

from __future__ import annotations

import torch

from pagemill_server.model.attention_plan import LONGEST_TILE, Chunk, DecodeTiles, plan
from pagemill_server.model.interface import AttentionMetadata, StepAttention
from pagemill_server.model.kv_pool import KVPool

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # its public face does not return the log-sum-exp


class TorchAttention:
    """The backend; one an engine."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        keys = pool.keys[0]
        # Row r: what the query at offset r of a tile may see of that tile, as an additive mask [256, 256].
        hidden = torch.full((LONGEST_TILE, LONGEST_TILE), float("-inf"), dtype=keys.dtype, device=keys.device)
        self._causal = hidden.triu(1)

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """Decide the step's tiles once for all layers."""
        step = plan(metadata, self._pool.null_block)
        masks = [
            self._causal.index_select(0, tiles.offsets)[:, None, None, : tiles.length] for tiles in step.last_tiles
        ]

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
            self._pool.write(layer, key, value, metadata.slot_mapping, step.fresh_blocks)
            keys, values = self._pool.keys[layer], self._pool.values[layer]
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
            if step.decode_rows is not None:
                single = query.index_select(0, step.decode_rows) if step.chunks else query
                done = _decode(single, keys, values, step.full_tiles, step.last_tiles, masks, step.most_tiles)
                if not step.chunks:
                    return done
                out.index_copy_(0, step.decode_rows, done)
            for chunk in step.chunks:
                _prefill(query, keys, values, chunk, self._causal, out)
            return out

        return attend


def _decode(
    query: torch.Tensor,  # [S, num_heads, head_dim]: one token of each sequence
    keys: torch.Tensor,  # [num_kv_heads, num_blocks + 1, block_size, head_dim]
    values: torch.Tensor,
    full_tiles: DecodeTiles | None,
    last_tiles: tuple[DecodeTiles, ...],
    masks: list[torch.Tensor],
    most_tiles: int,
) -> torch.Tensor:  # [S, num_heads, head_dim]
    """All sequences' single tokens at once: tiles of equal length are one call, whichever sequence they belong to."""
    kv_heads, head_dim = keys.shape[0], keys.shape[-1]
    grouped = query.view(query.shape[0], kv_heads, -1, head_dim)
    if full_tiles is None and len(last_tiles) == 1:
        out, _ = _decode_tiles(grouped, keys, values, last_tiles[0], masks[0])
        return out.reshape(query.shape)
    outs = grouped.new_zeros((most_tiles, *grouped.shape))
    sums = torch.full((most_tiles, *grouped.shape[:-1]), float("-inf"), dtype=torch.float32, device=query.device)
    jobs = [*zip(last_tiles, masks, strict=True)] + ([(full_tiles, None)] if full_tiles is not None else [])
    for tiles, mask in jobs:
        out, log_sum = _decode_tiles(grouped.index_select(0, tiles.rows), keys, values, tiles, mask)
        outs[tiles.order, tiles.rows] = out
        sums[tiles.order, tiles.rows] = log_sum
    return _merge(outs, sums).reshape(query.shape)


def _decode_tiles(
    query: torch.Tensor,  # [tiles, num_kv_heads, group, head_dim]
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: DecodeTiles,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    gathered = (_gather(cache, tiles.blocks, query.shape[0], tiles.length).transpose(0, 1) for cache in (keys, values))
    return _flash(query, *gathered, 0.0, False, attn_mask=mask)  # type: ignore[no-any-return]


def _prefill(
    query: torch.Tensor,  # [T, num_heads, head_dim]
    keys: torch.Tensor,
    values: torch.Tensor,
    chunk: Chunk,
    causal: torch.Tensor,
    out: torch.Tensor,  # [T, num_heads, head_dim]; the chunk's rows are filled
) -> None:
    """Several tokens of one sequence: each is a batch entry that sees the same keys, so nothing is copied per token."""
    kv_heads, head_dim = keys.shape[0], keys.shape[-1]
    whole_keys, whole_values = (_gather(cache, chunk.blocks, 1, -1)[:, 0] for cache in (keys, values))
    for span in chunk.spans:
        count = span.last_row - span.first_row
        grouped = query[span.first_row : span.last_row].view(count, kv_heads, -1, head_dim)
        parts = []
        for tile_start in range(0, span.keys, LONGEST_TILE):
            tile_end = min(tile_start + LONGEST_TILE, span.keys)
            shape = (count, kv_heads, tile_end - tile_start, head_dim)
            mask = None
            if tile_end == span.keys:
                rows = causal[span.offset : span.offset + count, : tile_end - tile_start]
                mask = rows[:, None, None]
            parts.append(
                _flash(
                    grouped,
                    whole_keys[:, tile_start:tile_end].expand(shape),
                    whole_values[:, tile_start:tile_end].expand(shape),
                    0.0,
                    False,
                    attn_mask=mask,
                )
            )
        done = parts[0][0]
        if len(parts) > 1:
            done = _merge(torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts]))
        out[span.first_row : span.last_row].view(grouped.shape).copy_(done)


def _gather(cache: torch.Tensor, blocks: torch.Tensor, tiles: int, length: int) -> torch.Tensor:
    """Blocks [tiles * n] of a cache as runs of tokens: [num_kv_heads, tiles, length, head_dim] (-1: all of them)."""
    runs = cache.index_select(1, blocks).view(cache.shape[0], tiles, -1, cache.shape[-1])
    return runs if length in (-1, runs.shape[2]) else runs[:, :, :length]


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
