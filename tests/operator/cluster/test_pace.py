"""The pace of all calls together: what pauses them, for how long, and what ends it."""

from __future__ import annotations

import pytest

from pagemill_operator.cluster.pace import PAUSE_CAP, PAUSE_START, Pace
from tests.operator.clock import Clock


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock, jitter=lambda: 1.0)


def test_pauses_grow_to_a_cap_and_an_answer_ends_their_growth(pace: Pace, clock: Clock) -> None:
    assert pace.wait_seconds() == 0
    waits = []
    for _ in range(7):
        pace.failed(began=clock.now)
        waits.append(pace.wait_seconds())
        clock.now += waits[-1]
    assert waits == [PAUSE_START, 1, 2, 4, 8, PAUSE_CAP, PAUSE_CAP]
    pace.succeeded()
    pace.failed(began=clock.now)
    assert pace.wait_seconds() == PAUSE_START


def test_what_fails_at_the_same_time_is_one_failure(pace: Pace, clock: Clock) -> None:
    began = clock.now
    clock.now += 5
    for _ in range(16):
        pace.failed(began)
    assert pace.wait_seconds() == PAUSE_START


def test_what_the_api_server_asks_for_holds_whatever_succeeds_meanwhile(pace: Pace, clock: Clock) -> None:
    pace.told(7)
    pace.told(2)
    pace.succeeded()
    assert pace.wait_seconds() == 7
    clock.now += 7
    assert pace.wait_seconds() == 0


def test_since_when_it_answers(pace: Pace, clock: Clock) -> None:
    assert pace.answering_for() == 0
    pace.succeeded()
    clock.now += 3
    pace.succeeded()
    assert pace.answering_for() == 3
    pace.failed(began=clock.now)
    assert pace.answering_for() == 0


def test_the_cap_is_the_callers() -> None:
    clock = Clock()
    pace = Pace(clock, jitter=lambda: 1.0, cap=2.0)
    for _ in range(9):
        clock.now += 100
        pace.failed(began=clock.now)
    assert pace.wait_seconds() == 2
