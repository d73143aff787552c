"""Decode steps as CUDA graphs: one launch a step in place of hundreds, whose cost a small batch would not hide.

A graph replays the same kernels on the same memory, so there is one for each of a few batch sizes, which read their inputs from
tensors that stay; a batch is padded to the next size with rows whose length is 0 and whose slot is -1. Captured before the server
is ready. Steps with a longer piece, and models whose steps ask the device (experts), run without. Used by `graph_runner`.
https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagemill.sizes import format_size
from pagemill_server.model.batch import InputBatch
from pagemill_server.model.families import Model
from pagemill_server.model.triton_attention import DecodeInputs, TritonAttention

log = logging.getLogger(__name__)

_FIRST = (1, 2, 4, 8)
_STEP = 16  # between the sizes after those: a padding row costs little, a graph its capture and some memory


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes that get a graph, ascending; the last is the largest batch there is."""
    sizes = {*(size for size in _FIRST if size < max_num_seqs), *range(_STEP, max_num_seqs, _STEP), max_num_seqs}
    return tuple(sorted(sizes))


def padded_size(rows: int, sizes: Sequence[int]) -> int | None:
    """The least of the sizes (ascending) that holds so many rows; None: none does."""
    return next((size for size in sizes if size >= rows), None)


def is_decode(batch: InputBatch) -> bool:
    """Whether each sequence of the step has a single token."""
    return len(batch.metadata.query_start) - 1 == len(batch.token_ids)


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The tensors that graphs read, for the largest batch. A graph of n rows reads the first n."""

    token_ids: torch.Tensor  # int64 [S]
    positions: torch.Tensor  # int64 [S]
    slots: torch.Tensor  # int64 [S]
    block_tables: torch.Tensor  # int32 [S, blocks of the longest sequence]
    seq_lens: torch.Tensor  # int32 [S]

    @classmethod
    def empty(cls, sequences: int, blocks: int, device: torch.device) -> GraphInputs:
        """All padding."""
        ids = torch.zeros((2, sequences), dtype=torch.int64, device=device)
        return cls(
            ids[0],
            ids[1],
            torch.full((sequences,), -1, dtype=torch.int64, device=device),
            torch.zeros((sequences, blocks), dtype=torch.int32, device=device),
            torch.zeros(sequences, dtype=torch.int32, device=device),
        )

    def fill(self, batch: InputBatch, size: int) -> None:
        """A batch of decodes and, after it, padding up to `size` rows. What is beyond a sequence's blocks stays as it was."""
        rows, metadata = len(batch.token_ids), batch.metadata
        self.token_ids[:rows].copy_(batch.token_ids)
        self.positions[:rows].copy_(batch.positions)
        self.slots[:rows].copy_(metadata.slot_mapping)
        self.block_tables[:rows, : metadata.block_tables.shape[1]].copy_(metadata.block_tables)
        self.seq_lens[:rows].copy_(torch.tensor(metadata.seq_lens, dtype=torch.int32))
        self.token_ids[rows:size].zero_()
        self.positions[rows:size].zero_()
        self.slots[rows:size].fill_(-1)
        self.seq_lens[rows:size].zero_()

    def first(self, size: int) -> DecodeInputs:
        """What attention reads, of a graph of so many rows."""
        return DecodeInputs(self.slots[:size], self.block_tables[:size], self.seq_lens[:size])


class DecodeGraphs:
    """The graphs of one model; captured by its maker on the thread that computes."""

    def __init__(self, model: Model, attention: TritonAttention, max_num_seqs: int, blocks: int, device: torch.device):
        """`blocks`: of the longest sequence."""
        self._model, self._attention, self._device = model, attention, device
        self.sizes = graph_sizes(max_num_seqs)
        self._inputs = GraphInputs.empty(max_num_seqs, blocks, device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def capture(self) -> None:
        """Compile what is missing, then record every size, the largest first: the others fit the memory that it took."""
        began, before = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        pool = None
        for size in reversed(self.sizes):
            graph = torch.cuda.CUDAGraph()
            self._warm(size)
            with torch.cuda.graph(graph, pool=pool):
                hidden = self._forward(size)
            pool = pool or graph.pool()
            self._graphs[size] = graph, hidden
        torch.cuda.synchronize(self._device)
        taken = max(0, before - torch.cuda.mem_get_info(self._device)[0])
        log.info(
            "captured %d CUDA graphs, of 1 to %d sequences, in %.1f s; they take %s",
            len(self.sizes),
            self.sizes[-1],
            time.monotonic() - began,
            format_size(taken),
        )

    def run(self, batch: InputBatch) -> torch.Tensor | None:
        """Hidden states [rows, hidden_size], which the next run overwrites; None for a step that no graph is for."""
        size = padded_size(len(batch.token_ids), self.sizes) if is_decode(batch) else None
        if size is None:
            return None
        self._inputs.fill(batch, size)
        graph, hidden = self._graphs[size]
        graph.replay()
        return hidden[: len(batch.token_ids)]

    def _warm(self, size: int) -> None:
        """A library's first use may do what a capture forbids. On a stream of its own, as a capture is."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._forward(size)
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def _forward(self, size: int) -> torch.Tensor:
        inputs = self._inputs
        attend = self._attention.decoding(inputs.first(size))
        return self._model.forward(inputs.token_ids[:size], inputs.positions[:size], attend)
