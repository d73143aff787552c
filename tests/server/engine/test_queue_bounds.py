"""Who is refused: all of a request or nothing, before any work, and never what needn't wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.errors import QueueFull
from pagemill_server.engine.queue_bounds import QueueBounds
from pagemill_server.engine.request import EngineStats
from tests.server.engine.scripted import make_request

IDLE = EngineStats(0, 0, 0.0, 8, 0, 0, 0, 0, 0, 0, 0.0)
FULL = replace(IDLE, num_running=4)
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_queued_reqs=3, max_num_queued_tokens=100)


def refusal(stats: EngineStats, sequences: int, tokens: int, bounds: QueueBounds | None = None) -> QueueFull | None:
    try:
        (bounds or QueueBounds()).check(CONFIG, stats, sequences, tokens)
    except QueueFull as full:
        return full
    return None


def test_without_bounds_nothing_is_refused() -> None:
    QueueBounds().check(SchedulerConfig(), replace(FULL, num_waiting=10**6, waiting_tokens=10**9), 10**6, 10**9)


@pytest.mark.parametrize(
    ("waiting", "sequences", "refused"), [(0, 3, False), (0, 4, True), (2, 1, False), (2, 2, True), (3, 1, True)]
)
def test_so_many_may_wait_and_n_counts_n(waiting: int, sequences: int, refused: bool) -> None:
    full = refusal(replace(FULL, num_waiting=waiting), sequences, 0)
    assert (full is not None) == refused
    if full is not None:
        assert full.bound == "max_num_queued_reqs"
        assert f"{waiting} sequences wait, {sequences} more would be beyond max_num_queued_reqs=3" in str(full)


@pytest.mark.parametrize(("waiting", "tokens", "refused"), [(60, 40, False), (60, 41, True), (0, 0, False)])
def test_so_many_tokens_may_wait(waiting: int, tokens: int, refused: bool) -> None:
    full = refusal(replace(FULL, num_waiting=1, waiting_tokens=waiting), 1, tokens)
    assert (full is not None) == refused
    assert full is None or full.bound == "max_num_queued_tokens"


def test_an_empty_queue_takes_one_request_of_any_length() -> None:
    assert refusal(FULL, 1, 10_000) is None


def test_what_finds_a_free_place_does_not_wait() -> None:
    one_free = replace(FULL, num_running=3)
    assert refusal(one_free, 4, 0) is None, "one runs, three wait"
    assert refusal(one_free, 5, 0) is not None
    assert refusal(one_free, 1, 10_000) is None
    assert refusal(replace(one_free, num_waiting=3), 1, 0) is not None, "the place is of no use to those that wait"


def test_an_idle_engine_takes_what_is_larger_than_any_bound() -> None:
    assert refusal(IDLE, 100, 10_000) is None


def test_what_was_just_submitted_counts_until_the_engine_has_it() -> None:
    bounds = QueueBounds()
    for _ in range(7):
        bounds.submitted(make_request(20), IDLE)
    full = refusal(IDLE, 1, 0, bounds)
    assert full is not None, "four would run and three wait: a burst between two steps does not slip through"
    half_taken = replace(FULL, num_waiting=0, num_added=4)
    assert refusal(half_taken, 1, 1, bounds) is not None, "three are on their way"
    assert refusal(replace(FULL, num_waiting=1, waiting_tokens=20, num_added=7), 1, 20, bounds) is None


def test_on_its_way_n_counts_n_too() -> None:
    bounds = QueueBounds()
    bounds.submitted(make_request(20, sampling={"n": 6}), IDLE)
    assert refusal(IDLE, 1, 0, bounds) is None, "four will run, two wait, and one more may"
    assert refusal(IDLE, 2, 0, bounds) is not None
    bounds.submitted(make_request(20), IDLE)
    taken_in = replace(FULL, num_running=1, num_added=6)
    assert refusal(taken_in, 5, 0, bounds) is None, "one runs and one is on its way: two places and three may wait"
    assert refusal(taken_in, 6, 0, bounds) is not None


def test_it_says_when_to_come_again() -> None:
    full = refusal(replace(FULL, num_waiting=3, queue_seconds=7.2), 1, 0)
    assert full is not None
    assert full.retry_after == 8
    assert "in 8 seconds" in str(full)


def test_nothing_is_kept_of_what_the_engine_has() -> None:
    bounds = QueueBounds()
    for number in range(1000):
        bounds.submitted(make_request(1), replace(FULL, num_added=number))
    assert len(bounds._on_their_way) == 1
