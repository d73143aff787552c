"""Which batches a CUDA graph is for, and how one is padded to it; the capture itself needs a GPU (`test_gpu_model`)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: `pip install triton`, or torch's CUDA build, which brings it")

from pagemill_server.model.graph_runner import warm_steps
from pagemill_server.model.graphs import GraphInputs, graph_sizes, is_decode, padded_size
from pagemill_server.model.profile import Widest
from tests.server.model.triton_steps import batch_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (16, (1, 2, 4, 8, 16)),
        (40, (1, 2, 4, 8, 16, 32, 40)),
        (64, (1, 2, 4, 8, 16, 32, 48, 64)),
    ],
)
def test_sizes_reach_the_largest_batch(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(max_num_seqs) == sizes


def test_every_batch_has_a_size_that_is_not_much_larger() -> None:
    sizes = graph_sizes(256)
    for rows in range(1, 257):
        size = padded_size(rows, sizes)
        assert size is not None
        assert rows <= size < rows + 16
        assert size <= 2 * rows
    assert padded_size(257, sizes) is None


def test_the_inputs_are_the_batch_and_padding() -> None:
    inputs = GraphInputs.empty(8, 5, CPU)
    inputs.fill(batch_of([((9, 8, 7, 6), 60, 1)] * 4, 16), 8)  # remains of an earlier batch
    inputs.fill(batch_of([((2,), 3, 1), ((4, 0), 20, 1), ((1,), 0, 1)], 16), 4)
    assert inputs.token_ids[:4].tolist() == [1, 1, 1, 0]
    assert inputs.positions[:4].tolist() == [3, 20, 0, 0]
    assert inputs.slots[:4].tolist() == [2 * 16 + 3, 4, 16, -1]
    assert inputs.seq_lens[:4].tolist() == [4, 21, 1, 0]
    assert inputs.block_tables[:3, :2].tolist() == [[2, 0], [4, 0], [1, 0]]
    read = inputs.first(4)
    assert [len(read.slots), len(read.block_tables), len(read.seq_lens)] == [4, 4, 4]
    assert read.slots.data_ptr() == inputs.slots.data_ptr(), "a graph reads where the next batch is written"
    assert (read.block_tables.dtype, read.seq_lens.dtype, read.slots.dtype) == (torch.int32, torch.int32, torch.int64)


def test_a_step_with_a_longer_piece_is_none_for_a_graph() -> None:
    assert is_decode(batch_of([((0,), 3, 1), ((1,), 0, 1)], 16))
    assert not is_decode(batch_of([((0,), 3, 1), ((1,), 0, 2)], 16))


def test_warm_up_covers_each_kind_of_number() -> None:
    steps = warm_steps(Widest(512, 64, 4096, 16))
    counts = [tuple(len(sequence.token_ids) for sequence in step.sequences) for step in steps]
    for sequences in (1, 3, 16):
        for tokens in (1, 3, 16):
            assert (tokens,) * sequences in counts
        assert (3, *[1] * sequences) in counts, "both kernels in one step"
    tables = {len(step.sequences[0].block_table) for step in steps}
    assert {1, 3, 16} <= tables
    assert max(tables) == 4096 // 16
    for step in steps:
        assert step.num_tokens == sum(len(sequence.token_ids) for sequence in step.sequences)
        for sequence in step.sequences:
            assert set(sequence.block_table) == {0}
            assert len(sequence.block_table) * 16 >= sequence.start + len(sequence.token_ids)


@pytest.mark.parametrize("bounds", [Widest(1, 1, 1, 16), Widest(2, 1, 40, 16), Widest(8, 4, 17, 32)])
def test_warm_up_stays_within_the_bounds(bounds: Widest) -> None:
    for step in warm_steps(bounds):
        assert step.num_tokens <= bounds.max_num_batched_tokens
        assert len(step.sequences) <= bounds.max_num_seqs
        assert all(s.start + len(s.token_ids) <= bounds.max_model_len for s in step.sequences)
