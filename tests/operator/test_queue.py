"""The key queue: when a key is given out, and to how many."""

from __future__ import annotations

import asyncio
import random

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.queue import BACKOFF_CAP, EVENT_HOLD, LOOK_TURN, KeyQueue, backoff_seconds
from tests.operator.clock import Clock

A, B = Key("default", "a"), Key("default", "b")


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


def test_how_long_the_first_has_been_waiting(queue: KeyQueue, clock: Clock) -> None:
    assert queue.oldest_seconds() == 0
    queue.add(A, 5)
    assert queue.oldest_seconds() == 0, "not due yet"
    clock.now += 7
    queue.add(B)
    assert queue.oldest_seconds() == 2
    assert queue.take_due() == B
    assert queue.oldest_seconds() == 2
    assert queue.take_due() == A
    assert queue.oldest_seconds() == 0


def test_an_order_that_was_overtaken_costs_nothing_and_brings_no_key_twice(queue: KeyQueue, clock: Clock) -> None:
    """A key that is looked at every two seconds and asks each time to be looked at in five minutes."""
    keys = [Key("default", str(number)) for number in range(10)]
    for _ in range(1000):
        for each in keys:
            queue.add(each, 300)
            queue.add(each)
        taken = []
        while (key := queue.take_due()) is not None:
            taken.append(key)
            queue.done(key)
        assert sorted(taken) == sorted(keys)
        clock.now += 2
    assert len(queue) == 0
    assert len(queue._at_once) + len(queue._later) < 200


def test_who_comes_at_once_does_not_wait_for_looks_that_are_overdue(queue: KeyQueue, clock: Clock) -> None:
    """A thousand replicas that don't answer: every look at one takes its time-out."""
    looks = [Key("default", str(number)) for number in range(1000)]
    for each in looks:
        queue.add(each, 2)
    clock.now += 60
    queue.add(A)
    queue.add(looks[-1])  # something has happened to it
    assert {queue.take_due(), queue.take_due()} == {A, looks[-1]}


def test_an_event_does_not_lose_its_place_to_a_look_that_is_asked_for_meanwhile(queue: KeyQueue, clock: Clock) -> None:
    queue.add(B, 1)
    clock.now += 2
    queue.add(A)
    queue.add(A, 5)
    assert queue.take_due() == A


def test_looks_come_too_while_events_never_end(queue: KeyQueue, clock: Clock) -> None:
    queue.add(A, 1)
    clock.now += 2
    taken = []
    for number in range(LOOK_TURN):
        queue.add(Key("default", f"event-{number}"))
        queue.add(Key("default", f"another-{number}"))
        taken.append(queue.take_due())
    assert A in taken


def test_the_order_is_that_of_a_plain_search(clock: Clock) -> None:
    """Whatever comes in whatever order, against the definition: of those not in work, the one that is due for longest.

    Those that came at once first, but for every fourth.
    """
    chance = random.Random(7)
    queue, due, running = KeyQueue(clock, jitter=lambda: 1.0), dict[Key, float](), set[Key]()
    looks, turn = set[Key](), 0
    keys = [Key("default", str(number)) for number in range(12)]
    for _ in range(5000):
        key = chance.choice(keys)
        match chance.randrange(4):
            case 0:
                seconds = chance.choice([0, 1, 5, 60])
                queue.add(key, seconds)
                if clock.now + seconds < due.get(key, float("inf")):
                    due[key] = clock.now + seconds
                    (looks.add if seconds else looks.discard)(key)
                elif not seconds:
                    looks.discard(key)
            case 1 if running:
                done = chance.choice(sorted(running))
                queue.done(done)
                running.discard(done)
            case 2:
                clock.now += chance.random()
            case _:
                ready = [(when, each) for each, when in due.items() if each not in running and when <= clock.now]
                looks_first = turn == LOOK_TURN - 1
                ready.sort(key=lambda entry: ((entry[1] in looks) != looks_first, entry))
                expected = ready[0][1] if ready else None
                assert queue.take_due() == expected
                if expected:
                    del due[expected]
                    looks.discard(expected)
                    running.add(expected)
                    turn = (turn + 1) % LOOK_TURN
    assert len(queue) == len(due)


async def test_takers_wake_for_what_comes_and_share_it() -> None:
    queue = KeyQueue()
    takers = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(B, 0.01)
    queue.add(A)
    assert {await taker for taker in takers} == {A, B}
    assert len(queue) == 0
