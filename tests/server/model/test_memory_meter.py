"""What is held, and the most that a piece of work takes on top of it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from pagemill_server.model.memory_meter import HostMeter, make_meter

MIB = 1 << 20


def touch(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.uint8)


@pytest.fixture
def meter() -> HostMeter:
    gc.collect()  # what earlier tests have left goes now, and not while something is measured
    meter = HostMeter()
    if meter.peak(lambda: None) is None:
        pytest.skip("this kernel does not let a process reset its peak")
    return meter


def test_what_is_freed_before_the_end_counts(meter: HostMeter) -> None:
    def work() -> None:
        for _ in range(3):
            touch(64 * MIB)  # freed at once: the peak is one of them

    peak = meter.peak(work)
    assert peak is not None
    assert 63 * MIB <= peak < 80 * MIB  # the kernel counts pages a few late


def test_what_was_there_before_does_not_count(meter: HostMeter) -> None:
    kept = touch(64 * MIB)
    peak = meter.peak(lambda: touch(16 * MIB))
    assert peak is not None
    assert 15 * MIB <= peak < 32 * MIB
    assert len(kept) == 64 * MIB


def test_what_is_held_grows_and_shrinks(meter: HostMeter) -> None:
    before = meter.held()
    kept = touch(64 * MIB)
    between = meter.held()
    del kept
    after = meter.held()
    assert before is not None
    assert between is not None
    assert after is not None
    assert 63 * MIB <= between - before < 80 * MIB
    assert between - after > 48 * MIB


def test_without_leave_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    done: list[int] = []
    meter = HostMeter(tmp_path / "no-such-folder")
    assert meter.peak(lambda: done.append(1)) is None
    assert done == [1]
    assert meter.held() is None


def test_a_failure_of_the_work_is_its_own(meter: HostMeter) -> None:
    def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        meter.peak(work)


def test_the_cpu_has_the_hosts() -> None:
    assert isinstance(make_meter(torch.device("cpu")), HostMeter)
