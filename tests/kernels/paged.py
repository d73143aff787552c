"""A step over a paged cache in which whatever must not be read is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from pagemill_kernels import reference
from tests.kernels.where import random


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments of the kernels and of the twin."""

    query: torch.Tensor  # [T, H, D], part of wider rows
    key_cache: torch.Tensor  # part of a wider cache: every stride is its own
    value_cache: torch.Tensor
    block_tables: torch.Tensor  # int32; beyond a sequence's blocks: a block of NaN
    query_start: torch.Tensor  # int32 [S + 1]
    seq_lens: torch.Tensor  # int32 [S]
    window: int | None

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.key_cache, self.value_cache, self.block_tables

    def expected(self, scale: float | None = None) -> torch.Tensor:
        """The twin's result."""
        starts, lens = self.query_start.tolist(), self.seq_lens.tolist()
        return reference.paged_attention(self.query, *self.cache, lens, starts, self.window, scale)


def step(
    lens: list[int],
    chunks: list[int],  # new tokens of each sequence
    *,
    kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    spare_blocks: int = 1,  # columns of the table beyond the longest sequence's
) -> Step:
    """Sequences of these lengths in blocks that lie anywhere, only what may be seen written."""
    counts = [-(-length // block_size) for length in lens]
    poison = sum(counts)  # the last block
    order = torch.randperm(poison, generator=torch.Generator().manual_seed(9)).tolist()
    tables = torch.full((len(lens), max(counts) + spare_blocks), poison, dtype=torch.int32)
    caches = [
        torch.full((kv_heads, poison + 1, 2 * block_size, head_dim), float("nan"), dtype=dtype)[:, :, ::2] for _ in "kv"
    ]
    for row, (length, chunk, count) in enumerate(zip(lens, chunks, counts, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        unseen = 0 if window is None else max(0, length - chunk + 1 - window)
        slots = torch.tensor([blocks[t // block_size] * block_size + t % block_size for t in range(unseen, length)])
        new = [random(length - unseen, kv_heads, head_dim, dtype=dtype, seed=2 * row + part) for part in (0, 1)]
        reference.write_kv(caches[0], caches[1], new[0], new[1], slots)
    heads = kv_heads * group
    return Step(
        query=random(sum(chunks), heads + 2, head_dim, dtype=dtype, seed=77)[:, :heads],
        key_cache=caches[0],
        value_cache=caches[1],
        block_tables=tables,
        query_start=torch.tensor([0, *accumulate(chunks)], dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        window=window,
    )
