"""Why a thread came late: each cause is counted as itself, and what is left is the lock's."""

from __future__ import annotations

import gc
import time

import pytest

from benchmarks.lateness import Clocks, Look, reasons


def test_what_is_neither_computed_nor_waited_for_a_processor_is_the_locks() -> None:
    look = Look(late=0.030, own=0.006, core=0.004, garbage=0.0)
    assert look.lock == pytest.approx(0.020)
    assert Look(late=0.001, own=0.002, core=0.0, garbage=0.0).lock == 0.0
    assert look.as_json() == {"late": 30.0, "own": 6.0, "core": 4.0, "garbage": 0.0, "lock": 20.0, "streaming": False}


def test_a_look_counts_from_the_look_before() -> None:
    with Clocks().read() as clocks:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        busy = clocks.look(0.0, streaming=True)
        time.sleep(0.02)
        asleep = clocks.look(0.02, streaming=False)
    assert (busy.own >= 0.02, busy.streaming) == (True, True)
    assert asleep.own < busy.own


def test_a_search_for_garbage_is_counted() -> None:
    with Clocks().read() as clocks:
        gc.collect()
        assert clocks.look(0.0, streaming=False).garbage > 0
        assert clocks.look(0.0, streaming=False).garbage == 0
    assert not [callback for callback in gc.callbacks if isinstance(getattr(callback, "__self__", None), Clocks)]


def test_the_latest_are_named_and_all_that_were_too_late_counted() -> None:
    looks = [Look(late, late / 2, 0.0, 0.0) for late in (0.001, 0.020, 0.040, 0.012, 0.016)]
    lines = reasons(looks, 0.010)
    assert lines[0] == "4 looks later than 10 ms, in the mean late 22.0, own 11.0, core 0.0, lock 11.0, garbage 0.0"
    assert [line.split(",")[0] for line in lines[1:]] == ["  late 40.0", "  late 20.0", "  late 16.0"]
    assert reasons(looks[:1], 0.010) == []
