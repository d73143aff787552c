"""Computes one step of an encoder: whole texts in, a vector each out. Owns the weights; nothing is kept from step to step.

Implements `engine.ports.ModelRunner` for `engine/encoder`, whose thread alone calls it. Made by `load_encoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch

from pagemill.embedding_config import EmbeddingConfig
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.model.pooling import embed


class Encoder(Protocol):
    """What computes the states: `bert.Bert` or `native_encoder.NativeBert`."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, query_start: Sequence[int]) -> torch.Tensor:
        """int64 [T], int64 [T] from 0 in each text, where each text begins (and T) → last hidden states [T, hidden_size]."""


class EncoderRunner:
    """The model on its device."""

    def __init__(self, model: Encoder, config: EmbeddingConfig, device: torch.device) -> None:
        self._model, self._config, self._device = model, config, device

    @torch.inference_mode()
    def run(self, output: SchedulerOutput) -> RunnerOutput:
        """The vector of each of the step's texts; one that is not finite is named in `failed`."""
        if not output.sequences:
            return RunnerOutput({})
        hidden, bounds = self.hidden(output)
        vectors = {
            sequence.seq_id: embed(hidden[start:end], self._config)
            for sequence, (start, end) in zip(output.sequences, pairwise(bounds), strict=True)
        }
        failed = frozenset(seq_id for seq_id, vector in vectors.items() if vector is None)
        return RunnerOutput({}, failed, embeddings={i: v for i, v in vectors.items() if v is not None})

    @torch.inference_mode()
    def hidden(self, output: SchedulerOutput) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Last hidden states of all texts, one after another [T, hidden_size], and where each begins (and T)."""
        counts = [len(sequence.token_ids) for sequence in output.sequences]
        bounds = tuple(accumulate(counts, initial=0))
        token_ids = [token for sequence in output.sequences for token in sequence.token_ids]
        positions = [position for count in counts for position in range(count)]
        return self._model.forward(self._tensor(token_ids), self._tensor(positions), bounds), bounds

    def _tensor(self, row: list[int]) -> torch.Tensor:
        return torch.tensor(row, dtype=torch.int64, device=self._device)
