"""How the cache lies in memory: what its two layouts share, and what a written block takes."""

from __future__ import annotations

import pytest
import torch

from pagemill_server.model.kv_pool import KVPool

SHAPE = LAYERS, HEADS, HEAD_DIM, BLOCKS, BLOCK_SIZE = 3, 2, 16, 5, 4


@pytest.mark.parametrize("by_block", [False, True])
def test_layers_are_views_of_one_memory_and_begin_as_zeros(by_block: bool) -> None:
    pool = KVPool(*SHAPE, torch.bfloat16, torch.device("cpu"), by_block=by_block)
    assert pool.data.shape == (LAYERS, 2, HEADS, BLOCKS + 1, BLOCK_SIZE, HEAD_DIM)
    assert not pool.data.any()
    for layer in range(LAYERS):
        pool.keys[layer].fill_(layer)
        pool.values[layer].fill_(-layer)
    for layer in range(LAYERS):
        assert torch.equal(pool.data[layer, 0], torch.full_like(pool.keys[layer], layer))
        assert torch.equal(pool.data[layer, 1], torch.full_like(pool.keys[layer], -layer))


def test_by_block_a_block_of_all_layers_is_one_run_of_memory() -> None:
    pool = KVPool(*SHAPE, torch.float32, torch.device("cpu"), by_block=True)
    assert all(pool.data[:, :, :, number].is_contiguous() for number in range(BLOCKS))


def test_else_a_head_of_all_blocks_is_one_run_of_memory() -> None:
    pool = KVPool(*SHAPE, torch.float32, torch.device("cpu"))
    assert all(head.is_contiguous() for layer in (*pool.keys, *pool.values) for head in layer)
