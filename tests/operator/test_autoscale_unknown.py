"""What a scaling decision makes of what it doesn't know, and of zero, where only the gateway knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pagemill_operator.autoscale import Ask, Change, decide, remember
from pagemill_operator.signals import Samples
from tests.operator.scaling_worlds import NOW, ago, course, known, look, quiet, replica, said, spec

NAN = float("nan")


# What isn't known


@pytest.mark.parametrize(
    ("samples", "rule", "words"),
    [
        (quiet(2, missing=("chat-2 does not answer",)), "MissingSignals", "chat-2 does not answer"),
        (look(replica(kv=NAN), replica(), replica()), "MissingSignals", "chat-0 says a KV usage of nan"),
        (quiet(3, ttft_p95=NAN), "MissingSignals", "time to the first token is nan"),
        (look(missing=("chat-0 does not answer",)), "MissingSignals", "chat-0 does not answer"),
        (quiet(3, doubtful=("two series of chat-0",)), "DoubtfulSignals", "two series of chat-0"),
        (quiet(3, time=ago(31)), "StaleSignals", "not within 30 s"),
        (quiet(3, held=None), "GatewayUnreachable", "no gateway"),
        (look(), "NoReplicas", "no replica serves"),
    ],
)
def test_what_is_not_known_never_scales_down_and_says_so(samples: Samples, rule: str, words: str) -> None:
    autoscaling = spec(minReplicas=0, scaleDown={"stabilizationSeconds": 0})
    decision = decide(autoscaling, samples, known(3), NOW)
    assert said(decision) == (3, "Hold", rule, False)
    assert words in decision.reason
    history = remember(spec(), known(3), decision, True, NOW)
    assert history.asks == (Ask(NOW, 3),)  # in the window it counts as an ask for what there is


def test_of_many_pods_a_few_are_named() -> None:
    silent = tuple(f"chat-{number} does not answer" for number in range(9))
    for kind in ("missing", "doubtful"):
        samples: dict[str, Any] = {kind: silent}
        reason = decide(spec(), quiet(1, **samples), known(2), NOW).reason
        assert reason.startswith(f"{'; '.join(silent[:3])}; and 6 more; it stays at 2")


def test_of_partial_data_an_ask_for_more_is_honoured() -> None:
    """What is missing can only add to it."""
    for partial in ({"missing": ("chat-1 does not answer",)}, {"held": None}):
        fields: dict[str, Any] = partial
        decision = decide(spec(), look(replica(waiting=9), **fields), known(2), NOW)
        assert said(decision) == (5, "Up", "WaitingRequests", True)
        assert "it may be more" in decision.reason


@pytest.mark.parametrize("fields", [{"maxReplicas": 2}, {"scaleUp": {"podsPerMinute": 1}}])
def test_partial_data_that_can_do_nothing_is_still_said(fields: dict[str, Any]) -> None:
    history = known(2, changes=(Change(ago(1), 1),))
    decision = decide(spec(**fields), look(replica(waiting=9), missing=("chat-1 does not answer",)), history, NOW)
    assert said(decision) == (2, "Hold", "MissingSignals", False)


@pytest.mark.parametrize(
    "samples", [look(replica(waiting=90), time=ago(31)), look(replica(waiting=90), doubtful=("no",))]
)
def test_what_cannot_be_trusted_asks_for_nothing_either(samples: Samples) -> None:
    assert decide(spec(), samples, known(2), NOW).desired == 2


# Zero


def test_to_zero_only_after_a_window_with_nothing_at_all() -> None:
    autoscaling = spec(minReplicas=0)
    for busy in (
        look(replica(running=1)),
        look(replica(waiting=1)),
        look(replica(), held=1),
        look(replica(), loading=1),
    ):
        seen = course(
            autoscaling, known(1), [busy, *(quiet(1, time=NOW + timedelta(seconds=s)) for s in range(10, 320, 10))]
        )
        assert [decision.desired for decision, _ in seen] == [1] * 31 + [0]
        assert seen[-1][0].rule == "Idle"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"held": 0}, (0, "Hold", "Asleep", True)),
        ({"held": 3}, (1, "Up", "Wake", True)),
        ({"held": None}, (0, "Hold", "GatewayUnreachable", False)),
        (
            {"held": 1, "doubtful": ("Prometheus does not answer",)},
            (1, "Up", "Wake", True),
        ),  # there is nothing to ask it
        ({"held": 1, "time": ago(31)}, (0, "Hold", "StaleSignals", False)),
    ],
)
def test_at_zero_the_gateway_wakes(fields: dict[str, Any], expected: tuple[int, str, str, bool]) -> None:
    history = known(0, changes=(Change(ago(5), -1), Change(ago(9), 1)))
    autoscaling = spec(minReplicas=0, scaleUp={"podsPerMinute": 1})  # a request that is held waits for no rate
    assert said(decide(autoscaling, look(**fields), history, NOW)) == expected


def test_who_was_woken_stays_a_window_after_it_has_loaded() -> None:
    """The client has given up meanwhile; a replica that has loaded for longer than the window is not thrown away unused."""
    looks = [look(held=1)]
    looks += [look(loading=1, time=NOW + timedelta(seconds=s)) for s in range(10, 610, 10)]
    looks += [quiet(1, time=NOW + timedelta(seconds=s)) for s in range(610, 910, 10)]
    assert {decision.desired for decision, _ in course(spec(minReplicas=0), known(0), looks)} == {1}
