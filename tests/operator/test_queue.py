"""The key queue: when a key is given out, and to how many."""

from __future__ import annotations

import asyncio

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.queue import BACKOFF_CAP, EVENT_HOLD, KeyQueue, backoff_seconds

A, B = Key("default", "a"), Key("default", "b")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> KeyQueue:
    return KeyQueue(clock, jitter=lambda: 1.0)


def test_a_key_is_given_out_once_however_often_it_came(queue: KeyQueue) -> None:
    for _ in range(3):
        queue.add(A)
    assert queue.take_due() == A
    assert queue.take_due() is None


def test_the_one_that_waits_longest_comes_first(queue: KeyQueue, clock: Clock) -> None:
    queue.add(B)
    clock.now += 1
    queue.add(A)
    assert [queue.take_due(), queue.take_due()] == [B, A]


def test_a_delay_holds_and_a_sooner_wish_wins(queue: KeyQueue, clock: Clock) -> None:
    queue.add(A, 10)
    assert queue.take_due() is None
    queue.add(A, 3)
    queue.add(A, 20)
    clock.now += 3
    assert queue.take_due() == A


def test_a_key_in_work_waits_for_its_end(queue: KeyQueue) -> None:
    queue.add(A)
    assert queue.take_due() == A
    queue.add(A)
    assert queue.take_due() is None, "the same key twice at once"
    queue.done(A)
    assert queue.take_due() == A


def test_failures_back_off_and_success_forgets_them(queue: KeyQueue, clock: Clock) -> None:
    waits = []
    for _ in range(4):
        queue.add(A)
        clock.now += BACKOFF_CAP
        assert queue.take_due() == A
        waits.append(queue.fail(A))
        queue.done(A)
    assert waits == [1, 2, 4, 8]
    queue.succeed(A)
    clock.now += 8
    assert queue.take_due() == A
    assert queue.fail(A) == 1


def test_an_event_hurries_a_key_that_backs_off_but_not_at_once(queue: KeyQueue, clock: Clock) -> None:
    for _ in range(8):
        queue.fail(A)
    queue.add(A)
    assert queue.take_due() is None
    clock.now += EVENT_HOLD
    assert queue.take_due() == A


def test_the_api_servers_own_wish_to_be_left_alone_holds_events_too(queue: KeyQueue, clock: Clock) -> None:
    assert queue.fail(A, at_least=30) == 30
    queue.add(A)
    clock.now += 29
    assert queue.take_due() is None
    clock.now += 1
    assert queue.take_due() == A


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 2), (5, 32), (8, 256), (9, 300), (10_000, 300)])
def test_backoff(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures) == seconds


async def test_takers_wake_for_what_comes_and_share_it() -> None:
    queue = KeyQueue()
    takers = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(B, 0.01)
    queue.add(A)
    assert {await taker for taker in takers} == {A, B}
    assert len(queue) == 0
