"""Turns what the scheduler asks for into one step's tensors. Pure: no weights, no cache. Called by `runner` once a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
    """Lay out a step; `output` holds at least one sequence."""
    sequences = output.sequences
    counts = np.array([len(sequence.token_ids) for sequence in sequences], dtype=np.int64)
    starts = np.array([sequence.start for sequence in sequences], dtype=np.int64)
    query_start = np.concatenate(([0], counts.cumsum()))
    token_ids = np.concatenate([np.array(sequence.token_ids, dtype=np.int64) for sequence in sequences])
    rows = np.arange(len(token_ids))
    owner = np.repeat(np.arange(len(sequences)), counts)  # [T]: the row's sequence
    positions = rows - query_start[owner] + starts[owner]

    tables = np.zeros((len(sequences), max(len(sequence.block_table) for sequence in sequences)), dtype=np.int64)
    for index, sequence in enumerate(sequences):
        tables[index, : len(sequence.block_table)] = sequence.block_table
    slots = tables[owner, positions // block_size] * block_size + positions % block_size

    sampled = [index for index, sequence in enumerate(sequences) if sequence.sampling is not None]
    pooled = [index for index, sequence in enumerate(sequences) if sequence.pooling]
    return InputBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        metadata=AttentionMetadata(
            slot_mapping=torch.from_numpy(slots).to(device),
            query_start=tuple(query_start.tolist()),
            seq_lens=tuple((starts + counts).tolist()),
            block_tables=torch.from_numpy(tables).to(device),
            block_size=block_size,
        ),
        sample_rows=torch.from_numpy(query_start[1:][sampled] - 1).to(device),
        sampled=tuple(sequences[index] for index in sampled),
        pool_rows=torch.from_numpy(query_start[1:][pooled] - 1).to(device),
        pooled=tuple(sequences[index] for index in pooled),
        scored=tuple(
            (int(query_start[i]), sequence) for i, sequence in enumerate(sequences) if sequence.prompt_targets
        ),
    )
