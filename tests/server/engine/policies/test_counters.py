"""Virtual token counters: lifting, weights, and what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.engine.policies.counters import AWAY_KEPT, Counters


def arrive(counters: Counters, name: str) -> None:
    counters.come(name)
    counters.wait(name)


def test_who_comes_back_is_lifted_to_the_least_of_those_that_wait() -> None:
    counters = Counters()
    for name in "ab":
        arrive(counters, name)
    counters.charge("a", 100)
    counters.charge("b", 50)
    arrive(counters, "new")
    assert counters["new"] == 50
    counters.charge("new", 500)
    counters.run("new")
    counters.go("new")
    arrive(counters, "new")
    assert counters["new"] == 550, "what it was served beyond the others is not forgotten"


def test_into_an_empty_queue_one_comes_where_the_last_left_it() -> None:
    counters = Counters()
    arrive(counters, "a")
    counters.charge("a", 70)
    counters.run("a")
    arrive(counters, "b")
    assert counters["b"] == 70


def test_a_weight_divides_what_is_charged() -> None:
    counters = Counters({"heavy": 4.0})
    for name in ("heavy", "plain"):
        arrive(counters, name)
    for name in ("heavy", "plain"):
        counters.charge(name, 100)
    assert (counters["heavy"], counters["plain"]) == (25, 100)


def test_when_nobody_is_left_all_begin_anew() -> None:
    counters = Counters()
    arrive(counters, "a")
    counters.charge("a", 70)
    counters.run("a")
    counters.go("a")
    assert counters.idle
    assert len(counters) == 0
    arrive(counters, "b")
    assert counters["b"] == 0


@pytest.mark.parametrize("cost", [0.0, 1.0, 1e6])
def test_names_without_end_are_not_kept_without_end(cost: float) -> None:
    counters = Counters()
    arrive(counters, "resident")
    for number in range(5 * AWAY_KEPT):
        name = f"name{number}"
        arrive(counters, name)
        counters.charge(name, cost)
        counters.run(name)
        counters.go(name)
        counters.charge("resident", cost / 2)
        assert len(counters) <= AWAY_KEPT + 3


def test_nobody_gains_by_being_forgotten() -> None:
    counters = Counters()
    arrive(counters, "resident")
    served: dict[str, float] = {}
    for number in range(3 * AWAY_KEPT):
        name = f"name{number}"
        arrive(counters, name)
        counters.charge(name, float(number % 97))
        served[name] = counters[name]
        counters.run(name)
        counters.go(name)
    for name, before in served.items():
        arrive(counters, name)
        assert counters[name] >= before


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["arrive", "run", "go", "charge"])), max_size=60))
def test_counters_never_go_down_while_somebody_is_here(moves: list[tuple[str, str]]) -> None:
    counters, waiting, running = Counters(), list[str](), list[str]()
    for name, move in moves:
        before = {n: counters[n] for n in "abc"}
        if move == "arrive":
            arrive(counters, name)
            waiting.append(name)
        elif move == "run" and name in waiting:
            waiting.remove(name)
            running.append(name)
            counters.run(name)
        elif move == "go" and name in running:
            running.remove(name)
            counters.go(name)
        elif move == "charge":
            counters.charge(name, 7.0)
        if waiting or running:
            assert all(counters[n] >= before[n] for n in "abc")
        else:
            assert len(counters) == 0
