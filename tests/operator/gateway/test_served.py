"""One deployment as it is served: who is picked while replicas come, go and fail, and who waits in which order."""

from __future__ import annotations

import asyncio

from pagemill_operator.gateway.route import Route, Target
from pagemill_operator.gateway.served import MOST_AVOIDED_SECONDS, Served
from tests.operator.clock import Clock


def served(*replicas: str, clock: Clock | None = None, **changes: object) -> Served:
    return Served(Target(Route("tiny", 1, **changes), frozenset(replicas)), clock=clock or Clock())  # type: ignore[arg-type]


def test_one_that_failed_comes_last_for_a_while_and_longer_each_time() -> None:
    clock = Clock()
    it = served("a", "b", clock=clock)
    for seconds in (1, 2, 4, 8, MOST_AVOIDED_SECONDS):
        it.avoid("a")
        it.avoid("a")  # those that were under way count once
        clock.now += seconds - 0.1
        assert {it.pick() for _ in range(50)} == {"b"}
        assert it.pick(tried={"b"}) == "a"
        assert it.pick(tried={"b"}, patient=True) is None
        assert abs(it.next_look() - clock.now - 0.1) < 1e-6
        clock.now += 0.2
        assert {it.pick() for _ in range(50)} == {"a", "b"}
    it.trust("a")
    it.avoid("a")
    clock.now += 1.1
    assert it.pick(tried={"b"}, patient=True) == "a"


def test_a_replica_that_comes_back_is_a_new_one() -> None:
    it = served("a")
    it.avoid("a")
    it.update(Target(it.route, frozenset()))
    assert it.pick() is None
    it.update(Target(it.route, frozenset("a")))
    assert it.pick(patient=True) == "a"


def test_what_runs_is_counted_until_it_is_over_even_where_the_replica_has_gone() -> None:
    it = served("a", "b")
    with it.running_on("a"):
        assert it.pick() == "b"
        it.update(Target(it.route, frozenset("b")))
        assert it.running == {"a": 1}
    assert not it.running
    assert dict(it.taken) == {}


def test_prefixes_go_to_one_replica_as_long_as_it_has_room() -> None:
    it = served("a", "b", "c", routing="prefix")
    owner = it.pick(b"prompt")
    assert {it.pick(b"prompt") for _ in range(20)} == {owner}
    assert owner is not None
    with it.running_on(owner), it.running_on(owner), it.running_on(owner):
        assert it.pick(b"prompt") != owner
    assert {it.pick(None) for _ in range(100)} == {"a", "b", "c"}
    it.update(Target(it.route, frozenset("abc") - {owner}))
    assert it.pick(b"prompt") != owner
    it.update(Target(it.route, frozenset("abc")))
    assert it.pick(b"prompt") == owner


async def test_those_who_came_first_look_first_whatever_they_did_meanwhile() -> None:
    it, order, looked = served(), list[int](), asyncio.Event()

    async def wait(number: int) -> None:
        with it.holding(0) as place:
            if number == 0:  # it looks in vain meanwhile
                await place.change(0.01)
                looked.set()
            await place.change(60)
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(wait(number))
        await looked.wait()
        await asyncio.sleep(0)  # it waits again
        it.stir()
    assert order == [0, 1, 2, 3]


def test_whoever_wakes_it_is_told_of_the_first_and_of_the_last() -> None:
    told: list[int] = []
    it = Served(Target(Route("tiny", 1), frozenset()), stirred=lambda: told.append(it.held))
    with it.holding(5), it.holding(6):
        assert (told, it.held, it.held_bytes) == ([1], 2, 11)
    assert told == [1, 0]
