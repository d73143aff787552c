"""The one interface of attention over the paged cache, behind which the torch and the Triton backends stand.

`model/batch` makes the metadata once a step from the scheduler's output; the runner hands it to the backend's `begin`, and
`model/<family>` calls what comes back once a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What a layer's attention is, beyond causal and grouped. Said by the family; the backend is made with one a layer."""

    window: int | None = None  # tokens that a query sees, itself included; None: all before it
    scale: float | None = None  # of the scores; None: 1/sqrt(head_dim)


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's layout, the same for every layer. Filled by `model/batch`. T = tokens in the step, S = sequences."""

    slot_mapping: torch.Tensor  # int64 [T]: physical slot (block * block_size + offset) each token's KV is written to
    query_start: tuple[int, ...]  # S + 1: sequence i's tokens are rows query_start[i] .. query_start[i+1]
    seq_lens: tuple[int, ...]  # S: tokens in the cache after this step (context + computed)
    block_tables: torch.Tensor  # int64 [S, most blocks of any sequence], padded with 0
    block_size: int


class StepAttention(Protocol):
    """Attention during one step. Writes a layer's new KV, then attends over all of each sequence's. Causal, GQA.

    All of a layer's KV is written before any of it is read: a sequence may share blocks that another writes in this step.
    """

    def __call__(
        self,
        query: torch.Tensor,  # [T, num_heads, head_dim]
        key: torch.Tensor,  # [T, num_kv_heads, head_dim]
        value: torch.Tensor,  # [T, num_kv_heads, head_dim]
        layer: int,
    ) -> torch.Tensor:  # [T, num_heads, head_dim]
        ...


class AttentionBackend(Protocol):
    """Owns how a step is laid out on its device."""

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """Prepare what all layers of one step share."""
        ...
