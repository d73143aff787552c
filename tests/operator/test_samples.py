"""From pages and from series: what is whole is handed on, and everything else is said with the pod and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pagemill_operator.errors import PrometheusError
from pagemill_operator.queries import (
    GAUGES,
    KV_CACHE_USAGE,
    MAX_RUNNING,
    PREEMPTIONS,
    RUNNING,
    SCRAPED,
    TTFT,
    WAITING,
)
from pagemill_operator.samples import Answer, Series, from_prometheus, read
from pagemill_operator.signals import ReplicaSignals, Samples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = "chat-7d9f6b54c8-aaaaa", "chat-7d9f6b54c8-bbbbb"
CLOCK = 1000.0  # Prometheus' own, which is not the operator's
LOADED = {KV_CACHE_USAGE: 0.5, WAITING: 2.0, RUNNING: 3.0, MAX_RUNNING: 16.0}


def page(values: Mapping[str, float] = LOADED, preemptions: float = 0, ttft: tuple[float, float] = (0, 0)) -> str:
    lines = [f'{GAUGES[signal]}{{engine="0"}} {value}' for signal, value in values.items()]
    lines.append(f'vllm:num_preemptions_total{{engine="0"}} {preemptions}')
    for bound, count in zip(("1.0", "+Inf"), ttft, strict=True):
        lines.append(f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{bound}"}} {count}')
    return "\n".join(lines) + "\n"


def looked(pages: Mapping[str, str | None], serving: tuple[str, ...] = (A, B)) -> Samples:
    return read(NOW, serving, 1, pages, None, 4)[0]


def series(pod: str, value: float, **labels: str) -> Series:
    return Series({"pod": pod, "namespace": "team", **labels}, value, CLOCK)


def answers(*pods: str) -> dict[str, list[Series]]:
    found = {signal: [series(pod, value) for pod in pods] for signal, value in LOADED.items()}
    found |= {SCRAPED: [series(pod, CLOCK - 10) for pod in pods], PREEMPTIONS: [series(pod, 0.5) for pod in pods]}
    return found | {TTFT: [Series({}, 0.25, CLOCK)]}


def asked(told: Mapping[str, Answer], serving: tuple[str, ...] = (A, B)) -> Samples:
    return from_prometheus(NOW, serving, 1, told, 4)


# The operator's own scrape.


def test_pages_become_replicas_in_the_order_of_their_names() -> None:
    samples = looked({B: page(), A: page(LOADED | {WAITING: 7.0})}, (B, A))
    first = ReplicaSignals(A, 0.5, 7.0, 3.0, 16.0)
    assert samples == Samples(NOW, (first, replace(first, pod=B, waiting=2.0)), loading=1, held=4)


def test_rates_and_first_tokens_need_the_look_before() -> None:
    _, scraped = read(NOW, [A], 0, {A: page(preemptions=5, ttft=(9, 9))}, None, 0)
    later = NOW + timedelta(seconds=20)
    samples, _ = read(later, [A], 0, {A: page(preemptions=15, ttft=(11, 11))}, scraped, 0)
    assert samples.replicas[0].preemptions_per_second == 0.5
    assert samples.ttft_p95 == pytest.approx(0.95)


def test_a_pod_without_an_answer_is_missing() -> None:
    for pages in ({A: page(), B: None}, {A: page()}):
        samples = looked(pages)
        assert [found.pod for found in samples.replicas] == [A]
        assert samples.missing == (f"{B} does not answer on /metrics",)


def test_a_page_that_is_none_is_missing() -> None:
    samples = looked({A: page(), B: "vllm:num_requests_waiting{ 1\n"})
    assert samples.missing == (f"{B} answers on /metrics with something else than Prometheus' text format",)
    (words,) = looked({A: page(), B: "<html>"}).missing
    assert words.startswith(f"{B} has no vllm:kv_cache_usage_perc, ")


def test_an_image_that_does_not_tell_its_limit_is_missing_and_no_limit_is_guessed() -> None:
    old = {signal: value for signal, value in LOADED.items() if signal != MAX_RUNNING}
    samples = looked({A: page(), B: page(old)})
    assert [found.pod for found in samples.replicas] == [A]
    assert samples.missing == (
        f"{B} has no pagemill:max_num_seqs, its image is too old: set spec.image to one of this release",
    )
    (none,) = looked({A: page(), B: page(LOADED | {MAX_RUNNING: 0.0})}).missing
    assert none == f"{B} says 0 for pagemill:max_num_seqs: it has no engine"


@pytest.mark.parametrize("signal", sorted(LOADED))
@pytest.mark.parametrize(("value", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1")])
def test_what_is_no_number_is_missing(signal: str, value: float, word: str) -> None:
    said = f"{B} says {word} for {GAUGES[signal]}"
    wrong = LOADED | {signal: value}
    samples = looked({A: page(), B: page(wrong)})
    assert ([found.pod for found in samples.replicas], samples.missing) == ([A], (said,))
    told = answers(A, B)
    told[signal][1] = series(B, value)
    assert asked(told).missing == (said,)


def test_two_engines_in_a_page_are_doubtful() -> None:
    samples = looked({A: page(), B: page() + 'vllm:num_requests_waiting{engine="1"} 0\n'})
    assert [found.pod for found in samples.replicas] == [A]
    assert samples.doubtful == (f"{B} has 2 series of vllm:num_requests_waiting, of which a replica has one",)
    assert samples.missing == ()


def test_nobody_serves_and_nothing_is_missing() -> None:
    assert looked({}, ()) == Samples(NOW, loading=1, held=4)
    assert asked(answers(), ()) == Samples(NOW, ttft_p95=0.25, loading=1, held=4)


# Prometheus.


def test_series_become_replicas() -> None:
    first = ReplicaSignals(A, 0.5, 2.0, 3.0, 16.0, 0.5)
    assert asked(answers(B, A, "chat-7d9f6b54c8-other")) == Samples(
        NOW, (first, replace(first, pod=B)), ttft_p95=0.25, loading=1, held=4
    )


def test_a_pod_that_prometheus_does_not_know_is_missing() -> None:
    for told in (answers(A), answers(A) | {PREEMPTIONS: [series(A, 0.5), series(B, 0.5)]}):
        (words,) = asked(told).missing
        assert words.startswith(f"Prometheus has nothing of {B}: "), "though a rate goes on for a while"


@pytest.mark.parametrize("signal", sorted(GAUGES))
def test_one_signal_that_is_not_there_is_missing(signal: str) -> None:
    told = answers(A, B)
    del told[signal][1]
    samples = asked(told)
    assert [found.pod for found in samples.replicas] == [A]
    (words,) = samples.missing
    assert words.startswith(f"{B} has no {GAUGES[signal]}")


def test_what_was_scraped_too_long_ago_is_missing_by_prometheus_own_clock() -> None:
    told = answers(A, B)
    told[SCRAPED] = [series(A, CLOCK - 60), series(B, CLOCK - 61)]
    samples = asked(told)
    assert [found.pod for found in samples.replicas] == [A]
    assert samples.missing == (f"{B} was last scraped 61 s ago: have it scraped every 30 s or more often",)
    told[SCRAPED] = [series(A, CLOCK - 60), series(B, math.nan)]
    assert len(asked(told).missing) == 1


def test_a_pod_too_new_for_a_rate_is_whole() -> None:
    samples = asked(answers(A, B) | {PREEMPTIONS: [series(A, 0.5)]})
    assert [found.preemptions_per_second for found in samples.replicas] == [0.5, None]
    assert len(asked(answers(A, B) | {PREEMPTIONS: [series(A, math.nan)]}).missing) == 1


def test_a_pod_that_is_scraped_twice_is_doubtful_and_neither_is_taken() -> None:
    told = answers(A, B)
    for signal in (*GAUGES, SCRAPED, PREEMPTIONS):
        told[signal] = [*(series(pod, 1.0, job="pods") for pod in (A, B)), series(B, 1.0, job="extra")]
    told[SCRAPED] = [replace(found, value=CLOCK) for found in told[SCRAPED]]
    samples = asked(told)
    assert [found.pod for found in samples.replicas] == [A]
    assert samples.doubtful == (f"{B} is scraped 2 times (job extra and pods): leave it one scrape job or monitor",)


def test_a_series_of_nobody_is_doubtful() -> None:
    told = answers(A, B)
    told[WAITING].append(Series({"instance": "10.0.0.1:8000"}, 3.0, CLOCK))
    samples = asked(told)
    assert samples.doubtful == ("a series of waitingRequests has no label pod",)
    assert len(samples.replicas) == 2


@pytest.mark.parametrize("signal", [*GAUGES, SCRAPED, PREEMPTIONS, TTFT])
def test_one_query_without_an_answer_makes_all_doubtful(signal: str) -> None:
    error = PrometheusError("Prometheus at http://p did not answer within 5 s")
    told: dict[str, Answer] = {**answers(A, B), signal: error}
    assert asked(told) == Samples(NOW, loading=1, held=4, doubtful=(str(error),))
    told[signal] = None
    assert asked(told).doubtful == ("Prometheus did not answer",)


def test_one_reason_is_said_once() -> None:
    told = dict.fromkeys(answers(), PrometheusError("it is away"))
    assert asked(told).doubtful == ("it is away",)
    assert asked({}).doubtful == ("Prometheus did not answer",)


def test_nobody_got_a_first_token() -> None:
    assert asked(answers(A, B) | {TTFT: [Series({}, math.nan, CLOCK)]}).ttft_p95 is None
    assert asked(answers(A, B) | {TTFT: []}).ttft_p95 is None
