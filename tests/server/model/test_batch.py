"""From the scheduler's output to tensors: positions, slots through block tables, the rows that are sampled."""

from __future__ import annotations

import torch

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.batch import make_batch


def test_a_step_of_a_chunk_a_single_token_and_a_first_prompt() -> None:
    sampling = SamplingParams()
    sequences = (
        ScheduledSequence(7, (11, 12, 13), 3, (5, 2), None, 0, 0),  # positions 3..5 of blocks of 4
        ScheduledSequence(8, (21,), 4, (9, 0), sampling, 0, 2),
        ScheduledSequence(9, (31, 32), 0, (3,), sampling, 0, 0),
    )
    batch = make_batch(SchedulerOutput(sequences, 6), 4, torch.device("cpu"))
    assert batch.token_ids.tolist() == [11, 12, 13, 21, 31, 32]
    assert batch.positions.tolist() == [3, 4, 5, 4, 0, 1]
    assert batch.metadata.slot_mapping.tolist() == [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 0, 3 * 4, 3 * 4 + 1]
    assert batch.metadata.query_start == (0, 3, 4, 6)
    assert batch.metadata.seq_lens == (6, 5, 2)
    assert batch.metadata.block_tables.tolist() == [[5, 2], [9, 0], [3, 0]]
    assert batch.sample_rows.tolist() == [3, 5]
    assert batch.sampled == sequences[1:]
    assert (batch.pool_rows.tolist(), batch.pooled, batch.scored) == ([], (), ())


def test_rows_that_are_pooled_and_prompts_that_are_scored() -> None:
    sequences = (
        ScheduledSequence(7, (11, 12, 13), 0, (5,), None, 0, 0, pooling=True),
        ScheduledSequence(8, (21, 22), 4, (9, 0), None, 0, 0, prompt_targets=(22, 23)),
        ScheduledSequence(9, (31,), 0, (3,), None, 0, 0, pooling=True),
    )
    batch = make_batch(SchedulerOutput(sequences, 6), 4, torch.device("cpu"))
    assert batch.pool_rows.tolist() == [2, 5]
    assert batch.pooled == (sequences[0], sequences[2])
    assert batch.scored == ((3, sequences[1]),)


def test_a_step_in_which_nothing_is_sampled() -> None:
    batch = make_batch(
        SchedulerOutput((ScheduledSequence(1, (4, 5), 0, (0,), None, 0, 0),), 2), 16, torch.device("cpu")
    )
    assert batch.sample_rows.tolist() == []
    assert batch.sampled == ()


def test_a_chunk_over_several_blocks_lies_where_they_are() -> None:
    sequences = (
        ScheduledSequence(7, tuple(range(11)), 3, (5, 2, 8, 1, 9), None, 0, 0),
    )  # positions 3..13 of blocks of 4
    batch = make_batch(SchedulerOutput(sequences, 11), 4, torch.device("cpu"))
    assert batch.positions.tolist() == list(range(3, 14))
    assert batch.metadata.slot_mapping.tolist() == [23, 8, 9, 10, 11, 32, 33, 34, 35, 4, 5]
    assert batch.metadata.block_tables.tolist() == [[5, 2, 8, 1, 9]]
