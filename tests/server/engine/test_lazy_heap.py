"""The order is that of everybody's place now, and few are asked for theirs."""

from itertools import count
from random import Random

import pytest

from pagemill_server.engine.lazy_heap import LazyHeap


class Standing:
    """Where each letter stands; counts how often one is asked."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.asked = 0

    def __call__(self, thing: str) -> tuple[int, str]:
        self.asked += 1
        return (self.places[thing], thing)


@pytest.mark.parametrize("seed", range(5))
def test_what_rises_unseen_and_what_falls_and_is_named_stand_where_they_are_now(seed: int) -> None:
    random = Random(seed)
    standing = Standing()
    heap = LazyHeap[str](standing)
    for step in range(2000):
        thing = f"thing{random.randrange(40)}"
        match random.randrange(4):
            case 0 if thing in standing.places:
                heap.drop(thing)
                heap.drop(thing)
                del standing.places[thing]
            case 1 if thing in standing.places:
                standing.places[thing] -= random.randrange(10)
                heap.lower(thing)
            case 2 if thing not in standing.places:
                standing.places[thing] = step // 10 + random.randrange(10)
                heap.lower(thing)
            case _ if thing in standing.places:
                standing.places[thing] += random.randrange(10)
        number = random.choice([1, 1, 1, 5, 100])
        assert heap.least(number) == sorted(standing.places, key=standing)[:number]
        assert len(heap) == len(standing.places)


def test_a_thousand_that_stay_behind_are_not_asked() -> None:
    standing = Standing()
    heap = LazyHeap[str](standing)
    for number in range(1000):
        standing.places[f"thing{number}"] = number
        heap.lower(f"thing{number}")
    standing.asked = 0
    for _ in range(100):
        standing.places[heap.least(1)[0]] += 3
    assert standing.asked <= 300


def test_what_is_out_of_date_is_not_kept_without_end() -> None:
    standing = Standing()
    heap = LazyHeap[str](standing)
    standing.places = {"first": 0, "other": 1}
    heap.lower("first")
    for _ in range(1000):
        heap.lower("other")
    assert len(heap._heap) < 100
    assert heap.least(5) == ["first", "other"]


def test_places_that_rise_by_being_asked_for_end_a_look_too() -> None:
    clock = count()
    heap = LazyHeap[str](lambda thing: (next(clock),))
    for thing in "abc":
        heap.lower(thing)
    assert sorted(heap.least(3)) == ["a", "b", "c"]
    assert len(heap.least(1)) == 1
