"""Turns what the scheduler asks for into one step's tensors. Pure: no weights, no cache. Called by `runner` once a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.interface import AttentionMetadata


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step. T = tokens, R = sequences that are sampled; all sequences' tokens stand in one row after another."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]: of each token in its own sequence
    metadata: AttentionMetadata
    sample_rows: torch.Tensor  # int64 [R]: the rows whose logits are wanted, the last of each sampled sequence
    sampled: tuple[ScheduledSequence, ...]  # R, in the order of sample_rows
    pool_rows: torch.Tensor  # int64 [P]: the last row of each sequence whose embedding is wanted
    pooled: tuple[ScheduledSequence, ...]  # P, in the order of pool_rows
    scored: tuple[tuple[int, ScheduledSequence], ...]  # those with prompt_targets, with the row of their first token


def make_batch(output: SchedulerOutput, block_size: int, device: torch.device) -> InputBatch:
    """Lay out a step; `output` holds at least one sequence.

    In lists: most steps are a token of each of few sequences, for which numpy and torch take longer to be asked than to compute.
    """
    sequences = output.sequences
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start, seq_lens = [0], []
    for sequence in sequences:
        end = sequence.start + len(sequence.token_ids)
        token_ids += sequence.token_ids
        positions += range(sequence.start, end)
        slots += _slots(sequence.block_table, sequence.start, end, block_size)
        query_start.append(len(token_ids))
        seq_lens.append(end)
    sampled = [index for index, sequence in enumerate(sequences) if sequence.sampling is not None]
    pooled = [index for index, sequence in enumerate(sequences) if sequence.pooling]
    return InputBatch(
        token_ids=_placed(token_ids, device),
        positions=_placed(positions, device),
        metadata=AttentionMetadata(
            slot_mapping=_placed(slots, device),
            query_start=tuple(query_start),
            seq_lens=tuple(seq_lens),
            block_tables=_placed(_tables(sequences), device),
            block_size=block_size,
        ),
        sample_rows=_placed([query_start[index + 1] - 1 for index in sampled], device),
        sampled=tuple(sequences[index] for index in sampled),
        pool_rows=_placed([query_start[index + 1] - 1 for index in pooled], device),
        pooled=tuple(sequences[index] for index in pooled),
        scored=tuple((query_start[i], sequence) for i, sequence in enumerate(sequences) if sequence.prompt_targets),
    )


def _slots(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Where positions start .. end-1 lie."""
    slots: list[int] = []
    while start < end:
        block, offset = divmod(start, block_size)
        first, count = table[block] * block_size + offset, min(block_size - offset, end - start)
        slots += range(first, first + count)
        start += count
    return slots


def _tables(sequences: Sequence[ScheduledSequence]) -> npt.NDArray[np.int64]:
    """[S, most blocks of any], padded with 0."""
    tables = np.zeros((len(sequences), max([len(sequence.block_table) for sequence in sequences])), dtype=np.int64)
    for row, sequence in zip(tables, sequences, strict=True):
        row[: len(sequence.block_table)] = sequence.block_table
    return tables


def _placed(numbers: list[int] | npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    # On the CPU no operation of torch's: each gives the interpreter's lock away, to an event loop that has just been woken.
    tensor = torch.from_numpy(np.array(numbers, dtype=np.int64))
    return tensor if device.type == "cpu" else tensor.to(device)
