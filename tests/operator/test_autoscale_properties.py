"""What holds of every scaling decision, whatever is measured and whatever has been."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pagemill_operator.autoscale import Ask, Change, Decision, History, decide, remember
from pagemill_operator.signals import ReplicaSignals, Samples
from pagemill_operator.spec_scaling import Autoscaling
from tests.operator.scaling_worlds import NOW, WINDOW, ago, course, look, replica, spec

COUNTS = st.integers(0, 40).map(float)
REPLICAS = st.lists(
    st.builds(replica, COUNTS, st.integers(0, 8).map(float), st.floats(0, 1), st.none() | st.floats(0, 5)), max_size=6
).map(tuple)
SAMPLES = st.builds(
    lambda replicas, **fields: look(*replicas, **fields),
    REPLICAS,
    time=st.sampled_from([NOW, ago(10)]),
    ttft_p95=st.none() | st.floats(0, 30),
    loading=st.integers(0, 3),
    held=st.integers(0, 9),
)
RATES = st.sampled_from([{}, {"podsPerMinute": 1}, {"podsPerMinute": 3}])
SPECS = st.builds(
    lambda low, more, up, down, seconds, targets: spec(
        minReplicas=low,
        maxReplicas=max(1, low + more),
        scaleUp=up,
        scaleDown={**down, "stabilizationSeconds": seconds},
        targets=targets,
    ),
    st.integers(0, 3),
    st.integers(0, 9),
    RATES,
    RATES,
    st.sampled_from([0, 60, WINDOW]),
    st.sampled_from([{}, {"ttftSeconds": 2}, {"preemptionsPerSecond": 0.5, "ttftSeconds": 5}]),
)
HISTORIES = st.builds(
    lambda current, since, asks, changes, came: History(
        current,
        ago(since),
        tuple(Ask(ago(time), asked) for time, asked in sorted(asks, reverse=True)),
        tuple(Change(ago(time), by) for time, by in sorted(changes, reverse=True)),
        None if came is None else ago(came),
    ),
    st.integers(0, 12),
    st.sampled_from([0, 100, 3600]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12)), max_size=4),
    st.lists(st.tuples(st.integers(0, 90), st.integers(-3, 3)), max_size=4),
    st.none() | st.integers(0, 90),
)
FLAWS = st.sampled_from(["missing", "doubtful", "stale", "nan", "ttft", "held", "none"])


def flawed(samples: Samples, flaw: str) -> Samples:
    nan, first = float("nan"), samples.replicas[:1]
    changes: dict[str, dict[str, Any]] = {
        "missing": {"missing": ("chat-9 does not answer",)},
        "doubtful": {"doubtful": ("two series of chat-0",)},
        "stale": {"time": ago(31)},
        "nan": {
            "replicas": (*(replace(one, running=nan) for one in first or (replica(pod="a"),)), *samples.replicas[1:])
        },
        "ttft": {"ttft_p95": nan},
        "held": {"held": None},
        "none": {"replicas": (), "loading": 0},
    }
    return replace(samples, **changes[flaw])


@given(SPECS, SAMPLES, HISTORIES)
def test_never_above_the_maximum_nor_below_the_minimum(
    autoscaling: Autoscaling, samples: Samples, history: History
) -> None:
    decision = decide(autoscaling, samples, history, NOW)
    assert autoscaling.min_replicas <= decision.desired <= autoscaling.max_replicas
    word = (decision.desired > history.current) - (decision.desired < history.current)
    assert decision.decision == {1: "Up", 0: "Hold", -1: "Down"}[word]
    assert decision.active is (decision.rule != "NoReplicas")
    assert decision.rule.isalpha()
    assert decision.reason.endswith(".")


@given(SPECS, SAMPLES, HISTORIES, FLAWS)
def test_never_down_on_what_is_not_known(
    autoscaling: Autoscaling, samples: Samples, history: History, flaw: str
) -> None:
    history = replace(history, current=min(history.current, autoscaling.max_replicas))
    broken = flawed(samples, flaw)
    assert decide(autoscaling, broken, history, NOW).desired >= history.current


@given(SPECS, SAMPLES, HISTORIES)
def test_down_only_if_nothing_in_the_window_asked_for_more(
    autoscaling: Autoscaling, samples: Samples, history: History
) -> None:
    decision = decide(autoscaling, samples, history, NOW)
    if decision.decision != "Down" or decision.rule == "AboveMaximum":
        return
    window = timedelta(seconds=autoscaling.scale_down.stabilization_seconds)
    assert all(ask.desired <= decision.desired for ask in history.asks if ask.time >= NOW - window)
    assert all(ask.desired <= decision.desired for ask in decision.signals)
    assert history.since <= NOW - window
    assert not samples.loading
    rate = autoscaling.scale_down.pods_per_minute
    if rate is not None:
        assert history.current - decision.desired + history.removed(NOW) <= rate


@given(SPECS, SAMPLES, HISTORIES)
def test_up_as_far_and_as_soon_as_bound_and_rate_allow(
    autoscaling: Autoscaling, samples: Samples, history: History
) -> None:
    decision = decide(autoscaling, samples, history, NOW)
    if decision.rule in ("BelowMinimum", "AboveMaximum", "Wake") or not decision.signals:
        return
    rate = autoscaling.scale_up.pods_per_minute
    room = 99 if rate is None else max(0, rate - history.added(NOW))
    asked = min(max(ask.desired for ask in decision.signals), autoscaling.max_replicas)
    assert max(decision.desired, history.current) == max(history.current, min(asked, history.current + room))


@given(SPECS, SAMPLES, HISTORIES, st.data())
def test_more_load_never_gives_fewer(
    autoscaling: Autoscaling, samples: Samples, history: History, data: st.DataObject
) -> None:
    """More that run are no such load by themselves while some wait: they say that a replica carries more than was known."""
    queue = samples.held or any(one.waiting for one in samples.replicas)

    def more(one: ReplicaSignals) -> ReplicaSignals:
        rate = one.preemptions_per_second
        return replace(
            one,
            waiting=one.waiting + data.draw(COUNTS),
            running=one.running if queue else data.draw(st.integers(int(one.running), 8)),
            kv_cache_usage=data.draw(st.floats(one.kv_cache_usage, 1)),
            preemptions_per_second=None if rate is None else rate + data.draw(st.floats(0, 5)),
        )

    ttft = samples.ttft_p95
    loaded = replace(
        samples,
        replicas=tuple(more(one) for one in samples.replicas),
        held=(samples.held or 0) + data.draw(st.integers(0, 9)),
        ttft_p95=data.draw(st.floats(0, 30)) if ttft is None else ttft + data.draw(st.floats(0, 30)),
    )
    less = decide(autoscaling, samples, history, NOW)
    assert decide(autoscaling, loaded, history, NOW).desired >= less.desired


@given(SPECS, st.lists(st.tuples(SAMPLES, st.integers(1, 150), st.booleans()), max_size=12))
def test_of_a_course_only_the_window_and_a_minute_are_kept(
    autoscaling: Autoscaling, looks: list[tuple[Samples, int, bool]]
) -> None:
    """And looking at what is kept is as good as looking at all there was."""
    now, history, every = NOW, History(autoscaling.min_replicas, NOW), list[Ask]()
    window = timedelta(seconds=autoscaling.scale_down.stabilization_seconds)
    for samples, seconds, acted in looks:
        now += timedelta(seconds=seconds)
        decision = decide(autoscaling, replace(samples, time=now), history, now)
        history = remember(autoscaling, history, decision, acted, now)
        assert decision.asked is not None or decision.rule in ("Asleep", "Wake", "NoReplicas")
        every.append(Ask(now, decision.desired if decision.asked is None else decision.asked))
        assert history.largest(window, now) == max(
            (ask for ask in every if ask.time >= now - window), key=lambda ask: (ask.desired, ask.time)
        )
        assert all(now - change.time < timedelta(seconds=60) for change in history.changes)
        assert all(
            earlier.desired > later.desired for earlier, later in zip(history.asks, history.asks[1:], strict=False)
        )


def test_a_noisy_load_does_not_flap_for_an_hour() -> None:
    """Every look's ask lies between one replica and six. Each that is for more is answered at once, and none is taken back."""
    noise, autoscaling = random.Random(7), spec(maxReplicas=8)
    history, decisions = History(1, NOW), list[tuple[int, Decision]]()
    for seconds in range(0, 3600, 5):
        now = NOW + timedelta(seconds=seconds)
        waiting = float(noise.choice([0, 0, 0, 2, 3, 5, 8, 11]))
        samples = look(replica(waiting, 6, 0.4), *[replica(running=1)] * (history.current - 1), time=now)
        decision = decide(autoscaling, samples, history, now)
        decisions.append((history.current, decision))
        assert decision.desired >= min(8, max(ask.desired for ask in decision.signals))
        history = remember(autoscaling, history, decision, True, now)
    changes = [(before, decision.desired) for before, decision in decisions if decision.desired != before]
    assert [after for _, after in changes] == sorted({after for _, after in changes})
    assert history.current == 6


def test_a_load_that_goes_after_an_hour_takes_its_replicas_with_it_once() -> None:
    looks = [look(*[replica(waiting=2)] * 4, time=NOW + timedelta(seconds=5 * n)) for n in range(60)]
    looks += [look(*[replica()] * 4, time=NOW + timedelta(seconds=300 + 5 * n)) for n in range(59)]
    seen = course(spec(), History(4, NOW), looks)
    assert {decision.desired for decision, _ in seen} == {4}
    last = look(*[replica()] * 4, time=NOW + timedelta(seconds=600))
    assert course(spec(), seen[-1][1], [last])[0][0].desired == 1
