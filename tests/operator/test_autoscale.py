"""Every rule of a scaling decision, in tables. What isn't known and zero are in `test_autoscale_unknown`, what always holds in
`test_autoscale_properties`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pagemill_operator import autoscale
from pagemill_operator.autoscale import Ask, Change, Decision, History, decide, remember
from pagemill_operator.signals import Samples
from tests.operator.scaling_worlds import NOW, ago, course, known, look, quiet, replica, said, spec

# Up


@pytest.mark.parametrize(
    ("samples", "rule", "desired"),
    [
        (look(replica(waiting=7)), "WaitingRequests", 4),
        (look(replica(kv=0.9)), "KvCacheUsage", 2),
        (look(replica(running=8)), "RunningRatio", 2),
        (look(replica(preemptions=3)), "PreemptionsPerSecond", 6),
        (look(replica(), ttft_p95=3.0), "TtftSeconds", 2),
        (look(replica(waiting=3, running=8, kv=1, preemptions=2)), "PreemptionsPerSecond", 4),
        (look(replica(), held=5), "WaitingRequests", 3),
    ],
)
def test_the_largest_ask_wins_at_once(samples: Samples, rule: str, desired: int) -> None:
    targets = {"preemptionsPerSecond": 0.5, "ttftSeconds": 2}
    decision = decide(spec(targets=targets), samples, known(1), NOW)
    assert said(decision) == (desired, "Up", rule, True)
    assert max(one.desired for one in decision.signals) == desired


def test_the_window_never_holds_back_a_scale_up() -> None:
    history = History(1, NOW, asks=(Ask(ago(1), 1),), changes=(Change(ago(1), -3),))
    assert decide(spec(), look(replica(waiting=7)), history, NOW).desired == 4


@pytest.mark.parametrize(
    ("rate", "changes", "most", "expected"),
    [
        (None, (), 10, (5, "Up", "WaitingRequests")),
        (None, (), 3, (3, "Up", "WaitingRequests")),
        (None, (), 1, (1, "Hold", "AtMaximum")),
        (2, (), 10, (3, "Up", "WaitingRequests")),
        (2, (Change(ago(30), 1),), 10, (2, "Up", "WaitingRequests")),
        (2, (Change(ago(30), 2),), 10, (1, "Hold", "ScaleUpRate")),
        (2, (Change(ago(30), 3),), 10, (1, "Hold", "ScaleUpRate")),
        (2, (Change(ago(30), -2),), 10, (3, "Up", "WaitingRequests")),  # what was removed gives nothing back
        (2, (Change(ago(60), 2),), 10, (3, "Up", "WaitingRequests")),
    ],
)
def test_up_is_bounded_by_the_maximum_and_the_rate(
    rate: int | None, changes: tuple[Change, ...], most: int, expected: tuple[int, str, str]
) -> None:
    autoscaling = spec(maxReplicas=most, scaleUp={"podsPerMinute": rate} if rate else {})
    decision = decide(autoscaling, look(replica(waiting=10)), known(1, changes=changes), NOW)
    assert said(decision)[:3] == expected
    assert "asks for 5 replicas" in decision.reason
    if decision.desired < 5:
        bound = f"maxReplicas is {most}" if most < 10 else f"podsPerMinute 2 allows {decision.desired} now"
        assert bound in decision.reason


# While replicas load


def test_loading_replicas_are_capacity_to_come() -> None:
    """An ask is a total: three are asked for, one serves and two load."""
    decision = decide(spec(), look(replica(waiting=5, running=8), loading=2), known(3), NOW)
    assert said(decision) == (3, "Hold", "LoadingReplicas", True)


def test_a_loading_replica_is_never_idle() -> None:
    autoscaling = spec(minReplicas=0, scaleDown={"stabilizationSeconds": 0})
    assert said(decide(autoscaling, look(loading=1), known(1), NOW)) == (1, "Hold", "LoadingReplicas", True)
    assert said(decide(autoscaling, quiet(2, loading=1), known(3), NOW)) == (3, "Hold", "LoadingReplicas", True)
    assert said(decide(autoscaling, quiet(3), known(3), NOW)) == (0, "Down", "Idle", True)


def test_neither_is_one_that_nobody_has_seen_yet() -> None:
    """The operator has asked for it within the last minute; its pod is still to be made."""
    autoscaling = spec(minReplicas=0, scaleDown={"stabilizationSeconds": 0})
    history = known(2, changes=(Change(ago(5), 1),))
    assert decide(autoscaling, quiet(1), history, NOW).rule == "LoadingReplicas"
    assert decide(autoscaling, quiet(2), history, NOW).desired == 0
    woken = known(1, changes=(Change(ago(5), 1),))
    assert said(decide(autoscaling, look(), woken, NOW)) == (1, "Hold", "LoadingReplicas", True)


def test_one_that_serves_and_says_nothing_is_not_on_its_way() -> None:
    history = known(2, changes=(Change(ago(5), 1),))
    assert not decide(spec(), look(replica(), missing=("chat-1 does not answer",)), history, NOW).coming


def test_a_queue_that_waits_for_loading_replicas_does_not_run_away() -> None:
    """One more waits each second than a replica serves; those that were asked for load for two minutes."""
    looks = [
        look(
            replica(waiting=7 + seconds, running=20), time=NOW + timedelta(seconds=seconds), loading=3 if seconds else 0
        )
        for seconds in range(0, 120, 5)
    ]
    looks += [
        look(
            replica(waiting=120 - 4 * seconds, running=20),
            *[replica(running=2)] * 3,
            time=NOW + timedelta(seconds=120 + seconds),
        )
        for seconds in range(0, 30, 5)
    ]
    seen = course(spec(maxReplicas=64), known(1), looks)
    assert seen[0][0].desired == 3
    assert max(decision.desired for decision, _ in seen) <= 10  # 120 waiting would be 60


def test_a_load_that_has_really_grown_is_answered_at_once_while_replicas_load() -> None:
    history = known(4, changes=(Change(ago(30), 3),))
    calm = decide(spec(maxReplicas=64), look(replica(waiting=30, running=8), loading=3), history, NOW)
    grown = decide(spec(maxReplicas=64), look(replica(waiting=150, running=8), loading=3), history, NOW)
    assert (calm.desired, grown.desired) == (4, 16)
    assert grown.decision == "Up"


def test_a_queue_asks_for_the_same_whenever_replicas_came() -> None:
    samples = look(replica(waiting=30, running=8), replica())
    asked = {
        decide(spec(maxReplicas=64), samples, known(2, came=came), NOW).desired for came in (ago(5), ago(99), None)
    }
    assert asked == {5}


# Down


def test_down_only_after_a_whole_window_without_an_ask_for_more() -> None:
    looks = [look(*[replica(waiting=6)] + [replica()] * 2, time=NOW)]
    looks += [quiet(3, time=NOW + timedelta(seconds=seconds)) for seconds in range(10, 320, 10)]
    seen = [decision for decision, _ in course(spec(), known(3), looks)]
    downs = [number for number, decision in enumerate(seen) if decision.decision == "Down"]
    assert (downs, seen[31].desired, seen[31].rule) == ([31], 1, "LessAsked")
    assert {decision.rule for decision in seen[1:31]} == {"StabilizationWindow"}
    assert "3 were asked for 300 s ago" in seen[30].reason


def test_down_goes_to_the_largest_ask_of_the_window() -> None:
    history = known(6, asks=(Ask(ago(299), 3), Ask(ago(9), 2)))
    assert said(decide(spec(), quiet(6), history, NOW)) == (3, "Down", "LessAsked", True)


def test_this_look_is_of_the_window() -> None:
    samples = look(*[replica(waiting=1.5)] * 6)
    assert decide(spec(), samples, known(6, asks=(Ask(ago(9), 2),)), NOW).desired == 5


def test_an_operator_that_has_just_started_waits_a_whole_window() -> None:
    decision = decide(spec(), quiet(3), History(3, ago(299)), NOW)
    assert said(decision) == (3, "Hold", "StabilizationWindow", True)
    assert "known for 299 s of scaleDown.stabilizationSeconds 300" in decision.reason
    assert decide(spec(), quiet(3), History(3, ago(300)), NOW).desired == 1


def test_no_window_means_at_once() -> None:
    autoscaling = spec(scaleDown={"stabilizationSeconds": 0})
    assert decide(autoscaling, quiet(3), History(3, NOW, asks=(Ask(ago(5), 3),)), NOW).desired == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), (4, "Down", "LessAsked")),
        ((Change(ago(30), -1),), (5, "Down", "LessAsked")),
        ((Change(ago(30), -2),), (6, "Hold", "ScaleDownRate")),
        ((Change(ago(30), -3),), (6, "Hold", "ScaleDownRate")),  # the rate was higher then
        ((Change(ago(60), -2),), (4, "Down", "LessAsked")),
    ],
)
def test_down_is_bounded_by_the_rate(changes: tuple[Change, ...], expected: tuple[int, str, str]) -> None:
    autoscaling = spec(scaleDown={"podsPerMinute": 2})
    assert said(decide(autoscaling, quiet(6), known(6, changes=changes), NOW))[:3] == expected


def test_what_is_asked_for_is_steady_and_the_minimum_is_the_fewest() -> None:
    assert said(decide(spec(), look(replica(waiting=2)), known(1), NOW)) == (1, "Hold", "Steady", True)
    assert said(decide(spec(minReplicas=2), quiet(2), known(2), NOW)) == (2, "Hold", "AtMinimum", True)
    assert decide(spec(minReplicas=2), quiet(5), known(5), NOW).desired == 2


# The user's word


@pytest.mark.parametrize(
    "samples", [quiet(1), look(), quiet(1, missing=("a is silent",)), quiet(1, doubtful=("c",)), quiet(1, time=ago(99))]
)
def test_bounds_are_kept_at_once_whatever_the_signals_say(samples: Samples) -> None:
    autoscaling = spec(minReplicas=2, maxReplicas=4, scaleUp={"podsPerMinute": 1}, scaleDown={"podsPerMinute": 1})
    assert said(decide(autoscaling, samples, History(0, NOW), NOW)) == (2, "Up", "BelowMinimum", True)
    assert said(decide(autoscaling, samples, History(9, NOW), NOW)) == (4, "Down", "AboveMaximum", True)


# What is remembered


def test_who_only_recommends_changes_nothing_but_remembers_what_was_asked() -> None:
    decision = decide(spec(), look(replica(waiting=9)), known(1), NOW)
    history = remember(spec(), known(1), decision, False, NOW)
    assert (history.current, history.changes, history.asks) == (1, (), (Ask(NOW, 5),))
    acted = remember(spec(), known(1), decision, True, NOW)
    assert (acted.current, acted.changes, acted.asks) == (5, (Change(NOW, 4),), (Ask(NOW, 5),))


def test_the_window_remembers_what_was_asked_and_not_what_a_bound_made_of_it() -> None:
    decision = decide(spec(maxReplicas=3), look(replica(waiting=9)), known(1), NOW)
    assert remember(spec(maxReplicas=3), known(1), decision, True, NOW).asks == (Ask(NOW, 5),)


def test_a_decision_made_by_hand_is_remembered_as_an_ask_for_what_it_wants() -> None:
    assert remember(spec(), known(1), Decision(2, "Hold", "Rule", "why."), True, NOW).asks == (Ask(NOW, 2),)


def test_replicas_that_came_are_remembered() -> None:
    decision = decide(spec(), look(replica(), loading=1), known(2), NOW)
    assert remember(spec(), known(2), decision, True, NOW).came == NOW
    assert remember(spec(), known(1), decide(spec(), quiet(1), known(1), NOW), True, NOW).came is None


# Reasons


@pytest.mark.parametrize(
    ("autoscaling", "samples", "history", "reason"),
    [
        (
            spec(maxReplicas=3),
            look(replica(waiting=7)),
            known(1),
            "waitingRequests asks for 4 replicas (7 waiting, target 2); there are 1, and maxReplicas is 3.",
        ),
        (
            spec(scaleDown={"podsPerMinute": 1}),
            quiet(4),
            known(4),
            "waitingRequests asks for 0 replicas (0 waiting, target 2); nothing has asked for more than 1 for 300 s, "
            "and scaleDown.podsPerMinute 1 allows 3 now.",
        ),
        (
            spec(),
            look(replica(kv=0.5), missing=("chat-1 does not answer",)),
            known(2),
            "chat-1 does not answer; it stays at 2, for what is known "
            "(kvCacheUsage asks for 1 replica (0.50 on average, target 0.8)) may be too little.",
        ),
        (
            spec(),
            look(replica(kv=0.5), loading=1),
            known(2),
            "kvCacheUsage asks for 1 replica (0.50 on average, target 0.8); 1 replica on the way, and nobody goes meanwhile.",
        ),
    ],
)
def test_reasons_say_inputs_rule_and_what_holds_back(
    autoscaling: Any, samples: Samples, history: History, reason: str
) -> None:
    assert decide(autoscaling, samples, history, NOW).reason == reason


def test_a_rule_stays_the_same_from_look_to_look() -> None:
    looks = [look(*[replica(kv=0.1 + n / 100)] * 3, time=NOW + timedelta(seconds=5 * n)) for n in range(20)]
    assert {decision.rule for decision, _ in course(spec(), replace(known(3), since=NOW), looks)} == {
        "StabilizationWindow"
    }


def test_the_page_lists_every_rule() -> None:
    table = (
        (Path(__file__).parents[2] / "docs" / "autoscaling.md")
        .read_text(encoding="utf-8")
        .partition("### Rules")[2]
        .partition("\n## ")[0]
    )
    listed = {rule for row in re.findall(r"^\| (`.*?) \|", table, re.M) for rule in re.findall(r"`(\w+)`", row)}
    strings = [
        node.value
        for node in ast.walk(ast.parse(Path(autoscale.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    ]
    rules = {one for one in strings if isinstance(one, str) and re.fullmatch(r"([A-Z][a-z]+)+", one)} - {
        "Up",
        "Down",
        "Hold",
    }
    signals = {"WaitingRequests", "KvCacheUsage", "RunningRatio", "PreemptionsPerSecond", "TtftSeconds"}
    assert listed == (rules - {"Ask", "Change", "Decision", "History", "SignalAsk"}) | signals
