"""What each signal asks for, in tables of one look."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.autoscale_asks import SignalAsk, asks
from pagemill_operator.signals import ReplicaSignals, Samples
from tests.operator.scaling_worlds import look, quiet, replica, spec


def ask(name: str, samples: Samples, current: int = 1, *, settling: bool = False, **targets: Any) -> SignalAsk:
    found = asks(spec(targets=targets).targets, samples, current, settling)
    return next(one for one in found if one.name == name)


def test_only_what_the_targets_name_asks() -> None:
    names = [one.name for one in asks(spec().targets, quiet(1), 1, settling=False)]
    assert names == ["waitingRequests", "kvCacheUsage", "runningRatio"]


@pytest.mark.parametrize(
    ("used", "target", "desired"),
    [
        ([0.0], 0.8, 0),
        ([0.00001], 0.8, 1),  # one block: not idle
        ([0.8], 0.8, 1),
        ([0.81], 0.8, 2),
        ([0.8, 0.8, 0.8], 0.8, 3),
        ([0.1, 0.2], 0.3, 1),  # 0.30000000000000004
        ([0.7, 0.1], 0.8, 1),
        ([1.0, 1.0], 0.8, 3),
    ],
)
def test_kv_usage_asks_for_what_would_bring_it_to_the_target(used: list[float], target: float, desired: int) -> None:
    samples = look(*(replica(kv=one) for one in used))
    assert ask("kvCacheUsage", samples, kvCacheUsage=target).desired == desired


@pytest.mark.parametrize(
    ("waiting", "held", "target", "desired"),
    [
        ([0], 0, 2, 0),
        ([1], 0, 2, 1),
        ([2, 2], 0, 2, 2),
        ([7, 0], 0, 2, 4),
        ([7, 0], 2, 2, 5),
        ([0], 3, 2, 2),
        ([1], 0, 0.1, 10),
    ],
)
def test_where_nothing_runs_a_queue_asks_for_a_replica_for_each_target_that_waits(
    waiting: list[float], held: int, target: float, desired: int
) -> None:
    samples = look(*(replica(waiting=one) for one in waiting), held=held)
    assert ask("waitingRequests", samples, waitingRequests=target).desired == desired


def test_a_queue_asks_while_kv_usage_is_low() -> None:
    """llm-d-autoscaling#662: a queue that grows at 32% KV."""
    samples = look(replica(waiting=9, running=3, kv=0.32))
    assert [one.desired for one in asks(spec().targets, samples, 1, settling=False)] == [3, 1, 1]


@pytest.mark.parametrize(
    ("waiting", "running", "desired"),
    [
        ([20], [8], 3),  # (20 + 8) / (2 + 8), not 20 / 2
        ([60, 0, 0], [8, 1, 1], 9),  # the fullest says what a replica carries
        ([7], [0], 4),  # nothing runs: as if nothing were known
        ([1, 0], [8, 8], 1),  # a queue within the target asks for no more than it would
    ],
)
def test_a_queue_asks_for_what_would_hold_all_that_wait_and_run(
    waiting: list[float], running: list[float], desired: int
) -> None:
    samples = look(*(replica(one, other) for one, other in zip(waiting, running, strict=True)))
    assert ask("waitingRequests", samples).desired == desired


def test_before_a_replica_serves_no_queue_asks_for_more_than_there_is() -> None:
    assert ask("waitingRequests", look(held=50, loading=1), 1).desired == 1
    assert ask("waitingRequests", look(held=3, loading=1), 5).desired == 2


@pytest.mark.parametrize(
    ("running", "target", "desired"), [([0], 0.9, 0), ([7], 0.9, 1), ([8], 0.9, 2), ([8, 8], 0.5, 4), ([4, 4], 1, 1)]
)
def test_running_asks_by_what_a_step_may_hold(running: list[float], target: float, desired: int) -> None:
    samples = look(*(replica(running=one) for one in running))
    assert ask("runningRatio", samples, runningRatio=target).desired == desired


def test_replicas_of_two_sizes_count_by_their_mean() -> None:
    samples = Samples(look().time, (ReplicaSignals("a", 0, 0, 8, 8), ReplicaSignals("b", 0, 0, 8, 16)))
    assert ask("runningRatio", samples, runningRatio=1).desired == 2  # 16 over 12


@pytest.mark.parametrize(
    ("rates", "current", "desired"),
    [([0.0], 1, 0), ([1.2], 1, 3), ([0.25, 0.25], 2, 1), ([None], 4, 4), ([3, None], 4, 6)],
)
def test_preemptions_ask_and_an_unknown_rate_holds_what_there_is(
    rates: list[float | None], current: int, desired: int
) -> None:
    samples = look(*(replica(preemptions=rate) for rate in rates))
    assert ask("preemptionsPerSecond", samples, current, preemptionsPerSecond=0.5).desired == desired


@pytest.mark.parametrize(
    ("seconds", "serving", "current", "desired"),
    [
        (None, 2, 3, 0),
        (0.9, 2, 2, 0),  # below half the target it asks for nothing
        (1.0, 2, 2, 2),
        (2.0, 2, 3, 3),  # in it, for what there is
        (2.1, 2, 2, 3),
        (3.0, 4, 4, 6),
        (60.0, 2, 2, 4),  # twice as many at most
        (2.1, 1, 3, 3),  # never for fewer than there are
    ],
)
def test_ttft_asks_in_proportion(seconds: float | None, serving: int, current: int, desired: int) -> None:
    samples = quiet(serving, ttft_p95=seconds)
    assert ask("ttftSeconds", samples, current, ttftSeconds=2).desired == desired


def test_ttft_is_of_the_last_minute_so_it_waits_for_those_that_come() -> None:
    samples = quiet(2, ttft_p95=60.0)
    assert ask("ttftSeconds", samples, 3, settling=True, ttftSeconds=2).desired == 3


def test_words_are_for_a_reason() -> None:
    samples = look(replica(waiting=7), held=3)
    assert ask("waitingRequests", samples).words == (
        "waitingRequests asks for 5 replicas (10 waiting, 3 of them at the gateway, target 2)"
    )
    assert ask("kvCacheUsage", look(replica(kv=0.5))).words == (
        "kvCacheUsage asks for 1 replica (0.50 on average, target 0.8)"
    )


def test_no_number_is_too_large() -> None:
    assert ask("waitingRequests", look(replica(waiting=1e308), replica(waiting=1e308))).desired == 1_000_000
