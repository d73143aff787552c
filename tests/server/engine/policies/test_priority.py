"""Lower numbers first, nobody for ever, and who gives way to whom."""

from __future__ import annotations

from dataclasses import replace

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies.priority import HIGHEST, Priority
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.policies.driving import STEP, Driven
from tests.server.engine.scripted import make_request


def sequence_of(priority: int, arrival: float = 0.0, seq_id: int = 0) -> Sequence:
    return Sequence(seq_id, replace(make_request(1, arrival=arrival), priority=priority), seed=0)


POLICY = Priority(SchedulerConfig(aging_seconds=10.0))


def test_a_level_is_worth_so_many_seconds_of_waiting() -> None:
    assert POLICY.key(sequence_of(0, arrival=5)) < POLICY.key(sequence_of(1, arrival=5))
    assert POLICY.key(sequence_of(1, arrival=0)) < POLICY.key(sequence_of(0, arrival=10.5))
    assert POLICY.key(sequence_of(0, arrival=9.5)) < POLICY.key(sequence_of(1, arrival=0))


def test_no_number_takes_the_bound_away() -> None:
    extreme, bounded = sequence_of(-(10**400)), sequence_of(-HIGHEST)
    assert POLICY.key(extreme) == POLICY.key(bounded)
    assert POLICY.key(sequence_of(10**400)) == POLICY.key(sequence_of(HIGHEST))


def test_the_last_of_the_order_gives_way() -> None:
    running = [sequence_of(0, seq_id=0), sequence_of(2, seq_id=1), sequence_of(1, seq_id=2)]
    assert POLICY.victim(running, None) is running[1]
    equal = [sequence_of(1, seq_id=i) for i in range(3)]
    assert POLICY.victim(equal, None) is equal[2]


def test_a_newcomer_displaces_only_whom_it_precedes_both_ways() -> None:
    low_and_old, low = sequence_of(1, arrival=0), sequence_of(1, arrival=100)
    assert POLICY.victim([low_and_old, low], sequence_of(0, arrival=100)) is low
    assert POLICY.victim([low_and_old], sequence_of(0, arrival=100)) is None, "it has waited for its level"
    assert POLICY.victim([sequence_of(0, arrival=100)], sequence_of(0, arrival=0)) is None, "an equal, though later"
    assert POLICY.victim([sequence_of(0, arrival=100)], sequence_of(1, arrival=0)) is None, "a better one, though later"


def test_the_engine_takes_them_in_order() -> None:
    driven = Driven(policy="priority", max_num_seqs=1)
    driven.add("first", max_tokens=2)
    driven.step()
    for name, priority in (("c", 3), ("a", 1), ("b", 2), ("a2", 1)):
        driven.add(name, max_tokens=2, priority=priority)
    driven.run()
    assert driven.order() == ["first", "a", "a2", "b", "c"]


def test_one_of_a_higher_priority_need_not_wait_for_a_place() -> None:
    driven = Driven(policy="priority", max_num_seqs=2)
    for name in ("low", "low2"):
        driven.add(name, max_tokens=50, priority=1)
    driven.step()
    driven.step()
    driven.add("high", max_tokens=2, priority=0)
    driven.step()
    assert "high" in driven.first_token
    driven.run()
    assert driven.engine.stats().num_preemptions == 1
    assert set(driven.ended) == {"low", "low2", "high"}


def test_nothing_waits_without_bound() -> None:
    """One place, and always somebody of a higher priority: it comes in once those have gone that came before its time."""
    aging, level, tokens = 5.0, 10, 3
    driven = Driven(policy="priority", max_num_seqs=1, aging_seconds=aging)
    driven.add("low", priority=level, max_tokens=tokens)
    number = 0
    while "low" not in driven.ended:
        if len(driven.engine.scheduler.roster.waiting) < 2:
            driven.add(f"high{number}", priority=0, max_tokens=tokens)
            number += 1
        driven.step()
        assert driven.now < 1000
    assert driven.first_token["low"] >= level * aging, "the others do go first"
    # After its time, at most what was queued or running then comes before it; after that nothing displaces it.
    assert driven.ended["low"] <= level * aging + (3 * tokens + tokens) * STEP
