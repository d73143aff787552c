"""Earliest deadline first, and who gives way when time runs out."""

from __future__ import annotations

from tests.server.engine.policies.driving import STEP, Driven


def test_the_earliest_deadline_goes_first_and_a_default_is_one_too() -> None:
    driven = Driven(policy="deadline", ttft_ms=50_000, max_num_seqs=1)
    driven.add("first", max_tokens=2)
    driven.step()
    driven.add("default", max_tokens=2)
    driven.add("later", max_tokens=2, deadline=driven.now + 60)
    driven.add("sooner", max_tokens=2, deadline=driven.now + 40)
    driven.run()
    assert driven.order() == ["first", "sooner", "default", "later"]


def test_a_newcomer_waits_for_half_its_time_and_then_displaces_one_that_has_its_first_token() -> None:
    driven = Driven(policy="deadline", ttft_ms=20_000, max_num_seqs=1)
    driven.add("long", max_tokens=100)
    driven.step()
    began = driven.now
    driven.add("newcomer", max_tokens=5)
    driven.run(until=lambda: "newcomer" in driven.first_token)
    assert 10 <= driven.first_token["newcomer"] - began <= 10 + 2 * STEP
    driven.run()
    assert set(driven.ended) == {"long", "newcomer"}
    assert driven.engine.stats().num_preemptions == 1


def test_a_place_that_gets_free_in_time_displaces_nobody() -> None:
    driven = Driven(policy="deadline", ttft_ms=20_000, max_num_seqs=1)
    driven.add("short", max_tokens=8)
    driven.step()
    driven.add("newcomer", max_tokens=5)
    driven.run()
    assert driven.engine.stats().num_preemptions == 0


def test_who_has_missed_its_deadline_displaces_nobody_and_goes_first_all_the_same() -> None:
    driven = Driven(policy="deadline", ttft_ms=20_000, max_num_seqs=1)
    driven.add("long", max_tokens=40)
    driven.step()
    driven.add("in time", max_tokens=3, deadline=driven.now + 1000)
    driven.add("too late", max_tokens=3, deadline=driven.now - 1)
    driven.run()
    assert driven.engine.stats().num_preemptions == 0
    assert driven.order() == ["long", "too late", "in time"]


def test_who_was_displaced_comes_back_although_newcomers_never_end() -> None:
    driven = Driven(policy="deadline", ttft_ms=10_000, max_num_seqs=1)
    driven.add("long", max_tokens=30)
    number = 0
    while "long" not in driven.ended:
        if len(driven.engine.scheduler.roster.waiting) < 2:
            driven.add(f"new{number}", max_tokens=5)
            number += 1
        driven.step()
        assert driven.now < 2000
    assert driven.engine.stats().num_preemptions > 0
    driven.run()
    policy = driven.engine.scheduler.roster.policy
    assert policy.inner._again == {}  # type: ignore[attr-defined]


def test_who_has_met_its_deadline_gives_way_first_when_blocks_run_out() -> None:
    driven = Driven(policy="deadline", ttft_ms=10_000, num_blocks=8, max_num_seqs=2)
    driven.add("early", prompt=8, max_tokens=20)
    driven.step()
    driven.add("late", prompt=8, max_tokens=20)
    driven.run()
    assert driven.engine.stats().num_preemptions > 0
    assert driven.ended["early"] < driven.ended["late"]


def test_with_many_more_deadlines_are_met_than_in_order_of_arrival() -> None:
    """Patient requests come first, urgent ones behind them: the urgent are in time, and so are the patient."""

    def in_time(policy: str) -> int:
        driven = Driven(policy=policy, max_num_seqs=2, ttft_ms=1_000_000)
        due = {}
        for number in range(20):
            due[f"patient{number}"] = 400.0
            driven.add(f"patient{number}", max_tokens=10, deadline=400.0)
        for number in range(5):
            due[f"urgent{number}"] = 40.0
            driven.add(f"urgent{number}", max_tokens=10, deadline=40.0)
        driven.run()
        return sum(driven.first_token[name] <= due[name] for name in due)

    assert in_time("deadline") == 25
    assert in_time("fcfs") == 20
