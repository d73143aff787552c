"""Blocks leave the device and come back with the same bits, whatever runs beside the copies, and nothing of a copy is lost."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pagemill.model_files import inspect
from pagemill_server.engine.errors import CopyFailed
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.model.block_copies import BlockCopier, Ended, make_copier
from pagemill_server.model.host_pool import HostPool, host_blocks
from pagemill_server.model.kv_pool import KVPool
from tests.server.tiny import write_tiny_llama

DEVICE_BLOCKS, HOST_BLOCKS = 24, 40
LONG = 60.0  # seconds: far more than a copy takes

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@dataclass
class Tiers:
    device: KVPool
    host: HostPool
    copier: BlockCopier

    def block(self, number: int) -> torch.Tensor:
        return self.device.data[:, :, :, number].clone()

    def wait_for(self, count: int) -> list[int]:
        tickets: list[int] = []
        while len(tickets) < count:
            got = self.copier.ended(LONG)
            assert got.tickets, "no fetch ended in a long time"
            assert got.seconds > 0
            tickets += got.tickets
        return tickets


def make_tiers(
    device: str = "cpu", dtype: torch.dtype = torch.float32, block_size: int = 4, *, by_block: bool = False
) -> Tiers:
    pool = KVPool(3, 2, 8, DEVICE_BLOCKS, block_size, dtype, torch.device(device), by_block=by_block)
    host = HostPool(pool, HOST_BLOCKS)
    return Tiers(pool, host, make_copier(pool, host))


@pytest.fixture(params=[*DEVICES, "cpu, by block"])
def tiers(request: pytest.FixtureRequest) -> Iterator[Tiers]:
    device, _, layout = request.param.partition(", ")
    made = make_tiers(device, by_block=layout == "by block")
    yield made
    made.copier.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_a_block_comes_back_with_the_same_bits(dtype: torch.dtype, block_size: int) -> None:
    tiers = make_tiers("cpu", dtype, block_size)
    tiers.device.data.view(torch.uint8).random_(0, 256)  # any bits, NaN among them
    before = tiers.device.data.view(torch.uint8).clone()
    tiers.copier.begin([BlockCopy(5, 31), BlockCopy(0, 2)], [])
    tiers.device.data.zero_()
    tiers.copier.begin([], [Fetch(7, (BlockCopy(31, 9), BlockCopy(2, 1)))])
    assert tiers.wait_for(1) == [7]
    after = tiers.device.data.view(torch.uint8)
    assert torch.equal(after[:, :, :, 9], before[:, :, :, 5])
    assert torch.equal(after[:, :, :, 1], before[:, :, :, 0])
    untouched = [block for block in range(DEVICE_BLOCKS + 1) if block not in (9, 1)]
    assert not after[:, :, :, untouched].any()
    tiers.copier.close()


def test_keys_and_values_of_a_layer_are_where_the_block_is(tiers: Tiers) -> None:
    tiers.device.keys[1][0, 3, 2, 5] = 1.5
    tiers.device.values[2][1, 3, 0, 7] = -2.5
    tiers.copier.begin([BlockCopy(3, 8)], [])
    tiers.copier.begin([], [Fetch(0, (BlockCopy(8, 20),))])
    tiers.wait_for(1)
    assert tiers.device.keys[1][0, 20, 2, 5] == 1.5
    assert tiers.device.values[2][1, 20, 0, 7] == -2.5


def test_random_traffic_beside_steps_that_write_keeps_every_bit(tiers: Tiers) -> None:
    """Fetches of any blocks in any order, while other blocks are offloaded and rewritten."""
    rng = random.Random(5)
    tiers.device.data.normal_()
    kept: dict[int, torch.Tensor] = {}  # by host block: what it must hold
    expected: dict[int, tuple[int, torch.Tensor]] = {}  # by ticket: target, content
    busy_device: set[int] = set()
    busy_host: dict[int, set[int]] = {}
    for ticket in range(120):
        idle = [block for block in range(DEVICE_BLOCKS) if block not in busy_device]
        pinned = set().union(*busy_host.values()) if busy_host else set()
        sources = rng.sample(idle, min(3, len(idle)))
        targets = rng.sample([block for block in range(HOST_BLOCKS) if block not in pinned], len(sources))
        for source, target in zip(sources, targets, strict=True):
            kept[target] = tiers.block(source)
        fetches = []
        if idle and (readable := [block for block in kept if block not in pinned]):
            source, target = rng.choice(readable), rng.choice(idle)
            fetches.append(Fetch(ticket, (BlockCopy(source, target),)))
            expected[ticket] = (target, kept[source])
            busy_device.add(target)
            busy_host[ticket] = {source}
        tiers.copier.begin(map(BlockCopy, sources, targets), fetches)
        for block in idle:  # the step writes what is its own
            if block not in busy_device:
                tiers.device.data[:, :, :, block] = torch.randn_like(tiers.device.data[:, :, :, block])
        for ended in tiers.copier.ended(LONG if len(busy_device) > DEVICE_BLOCKS - 4 else 0.0).tickets:
            target, content = expected.pop(ended)
            assert torch.equal(tiers.block(target), content)
            busy_device.remove(target)
            del busy_host[ended]
    assert sorted(tiers.wait_for(len(expected))) == sorted(expected)
    for target, content in expected.values():
        assert torch.equal(tiers.block(target), content)


def test_a_fetch_is_reported_once(tiers: Tiers) -> None:
    tiers.copier.begin([BlockCopy(0, 0)], [Fetch(3, (BlockCopy(0, 1),)), Fetch(4, (BlockCopy(0, 2),))])
    assert sorted(tiers.wait_for(2)) == [3, 4]
    assert tiers.copier.ended(LONG) == Ended()  # and nothing is waited for when nothing is under way


def test_a_failed_fetch_is_raised_by_the_next_step_and_by_every_later_one() -> None:
    tiers = make_tiers()
    tiers.copier.begin([], [Fetch(0, (BlockCopy(HOST_BLOCKS, 1),)), Fetch(1, (BlockCopy(0, 2),))])
    assert tiers.copier.ended(LONG) == Ended()
    for _ in range(2):
        with pytest.raises(CopyFailed, match="IndexError"):
            tiers.copier.begin([], [])
    tiers.copier.close()


def test_a_failed_offload_fails_its_step_but_not_the_fetches_that_came_with_it() -> None:
    tiers = make_tiers()
    with pytest.raises(CopyFailed, match="IndexError"):
        tiers.copier.begin([BlockCopy(0, HOST_BLOCKS)], [Fetch(0, (BlockCopy(0, 1),))])
    assert tiers.wait_for(1) == [0]
    tiers.copier.close()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "block-copies"]


def test_the_thread_ends_with_the_copier() -> None:
    others = threads()
    tiers = make_tiers()
    (thread,) = (thread for thread in threads() if thread not in others)
    assert thread.daemon
    tiers.copier.close()
    tiers.copier.close()
    assert not thread.is_alive()


def test_a_copier_that_is_dropped_takes_its_thread_along() -> None:
    others = threads()
    tiers = make_tiers()
    (thread,) = (thread for thread in threads() if thread not in others)
    del tiers
    gc.collect()
    thread.join(LONG)
    assert not thread.is_alive()


def test_how_many_blocks_fit_is_what_a_block_takes(tmp_path: Path) -> None:
    config = inspect(write_tiny_llama(tmp_path)).config
    pool = KVPool(
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.head_dim,
        2,
        16,
        torch.float32,
        torch.device("cpu"),
    )
    block_bytes = HostPool(pool, 1).data.nbytes
    assert host_blocks(config, 16, 4, 5 * block_bytes) == 5
    assert host_blocks(config, 16, 4, 5 * block_bytes - 1) == 4
    assert host_blocks(config, 16, 4, 0) == 0
