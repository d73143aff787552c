"""Attention over the paged cache by the native kernels: the backend where they compute, for whole decoders and for families in
torch.

A query's bits follow from its position and keys alone, and nothing that a sequence has not written is ever read, so no block's tail
is zeroed. Behind `interface.AttentionBackend`; made by `part`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill_kernels.native.attention import StepLayout, attend, step_layout
from pagemill_kernels.native.decoder import LayerCaches
from pagemill_kernels.native.matrix import Pool
from pagemill_server.model.interface import AttentionMetadata, LayerAttention
from pagemill_server.model.kv_pool import KVPool

_WIDEST_HEAD, _HEAD_STEP = 256, 16  # elements; as memory_fit has them


def can_attend(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernels have code for such heads and such a cache."""
    return head_dim % _HEAD_STEP == 0 and head_dim <= _WIDEST_HEAD and dtype in (torch.float32, torch.bfloat16)


class NativeAttention:
    """The backend; one an engine."""

    def __init__(self, cache: KVPool, layers: Sequence[LayerAttention], threads: Pool) -> None:
        self._pool, self._layers, self._threads = cache, tuple(layers), threads
        self._fields = LayerCaches(cache.keys, cache.values)

    def begin(self, metadata: AttentionMetadata) -> NativeStep:
        """Raises IndexError where a step names a block that there is not: the kernels would follow it anywhere."""
        blocks, tables, slots = self._pool.num_blocks, metadata.block_tables, metadata.slot_mapping
        reach = tables.shape[1] * metadata.block_size
        if max(metadata.seq_lens) > reach:
            raise IndexError(f"a sequence of {max(metadata.seq_lens)} tokens has blocks for {reach}")
        for tensor, end in ((tables, blocks), (slots, blocks * metadata.block_size)):
            numbers = tensor.numpy()
            if not 0 <= numbers.min() <= numbers.max() < end:
                raise IndexError(f"a step is laid out over blocks that there are not: the cache has {blocks}")
        layout = step_layout(slots, metadata.query_start, metadata.seq_lens, tables)
        return NativeStep(self._pool, self._layers, self._threads, layout, self._fields)


class NativeStep:
    """One step. A whole decoder takes its `layout` and `caches`; a family in torch calls it once a layer, as StepAttention."""

    def __init__(
        self,
        cache: KVPool,
        layers: Sequence[LayerAttention],
        threads: Pool,
        layout: StepLayout,
        caches: LayerCaches,
    ) -> None:
        self.layout, self.caches = layout, caches
        self._cache, self._layers, self._threads = cache, layers, threads

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
        kind = self._layers[layer]
        seen = attend(
            self._threads,
            self.layout,
            self._cache.keys[layer],
            self._cache.values[layer],
            query.float().contiguous(),
            key.float().contiguous(),
            value.float().contiguous(),
            kind.window,
            kind.scale,
        )
        return seen.to(query.dtype)
