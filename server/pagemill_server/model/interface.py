"""The one interface of attention over the paged cache, behind which the torch and the Triton backends stand.

`model/<family>` calls it once a layer; `model/batch` makes the metadata once a step from the scheduler's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's layout, the same for every layer. Filled by `model/batch`. T = tokens in the step, S = sequences."""

    slot_mapping: torch.Tensor  # int64 [T]: physical slot (block * block_size + offset) that each token's KV is written to
    query_start: tuple[int, ...]  # S + 1: sequence i's tokens are rows query_start[i] .. query_start[i+1]
    seq_lens: tuple[int, ...]  # S: tokens in the cache after this step (context + computed)
    block_tables: torch.Tensor  # int64 [S, most blocks of any sequence], padded with 0
    block_size: int


class AttentionBackend(Protocol):
    """Writes a layer's new KV and attends over all of the sequence's, through the block table. Causal, GQA."""

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, head_dim]
        key: torch.Tensor,  # [T, num_kv_heads, head_dim]
        value: torch.Tensor,  # [T, num_kv_heads, head_dim]
        layer: int,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:  # [T, num_heads, head_dim]
        ...
