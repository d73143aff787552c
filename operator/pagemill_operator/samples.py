"""Makes `signals.Samples` of what replicas say of themselves, or of what Prometheus says of them. Pure.

What is missing, stale, doubled or no number is never taken for a zero: it is said, with the pod and what to do about it, and no
replica is handed on without all its signals. Who asks pods and Prometheus is not known here. Called by `scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pagemill_operator.errors import PrometheusError
from pagemill_operator.exposition import Page, parse
from pagemill_operator.queries import (
    GAUGES,
    KV_CACHE_USAGE,
    MAX_RUNNING,
    PREEMPTIONS,
    RUNNING,
    SCRAPED,
    TTFT,
    TTFT_QUANTILE,
    WAITING,
)
from pagemill_operator.scraped import Scraped, remember
from pagemill_operator.signals import ReplicaSignals, Samples

FRESH = 60.0  # seconds; what Prometheus scraped before says nothing of now


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an instant query's answer."""

    labels: Mapping[str, str]
    value: float
    time: float  # seconds since 1970 on Prometheus' own clock: the moment that the answer is about


Answer = Sequence[Series] | PrometheusError | None  # None: nobody could be asked, and why is not known


class _Missing(Exception):
    """A pod's signals are not all there; the message is a sentence's end."""


class _Doubtful(Exception):
    """They are there and can't be trusted."""


def read(
    now: datetime,
    serving: Sequence[str],
    loading: int,
    pages: Mapping[str, str | None],
    before: Scraped | None,
    held: int | None,
) -> tuple[Samples, Scraped]:
    """From the pods' own pages (None: no answer), and what the next look needs of this one."""
    parsed = {pod: _page(pages.get(pod)) for pod in serving}
    counters = {pod: page.counters for pod, page in parsed.items() if isinstance(page, Page)}
    scraped = remember(before, now, counters, serving)

    def look(pod: str) -> ReplicaSignals:
        page = parsed[pod]
        if isinstance(page, str):
            raise _Missing(f"{pod} {page}")
        return _from_page(pod, page, scraped.preemptions_per_second(pod))

    replicas, missing, doubtful = _each(serving, look)
    return Samples(now, replicas, scraped.ttft(TTFT_QUANTILE), loading, held, missing, doubtful), scraped


def from_prometheus(
    now: datetime, serving: Sequence[str], loading: int, answers: Mapping[str, Answer], held: int | None
) -> Samples:
    """From the answers to `queries.signal_queries`, by signal."""
    errors: list[str] = []
    series: dict[str, Sequence[Series]] = {}
    for signal in (*GAUGES, SCRAPED, PREEMPTIONS, TTFT):
        answer = answers.get(signal)
        if answer is None or isinstance(answer, PrometheusError):
            errors.append(str(answer or "Prometheus did not answer"))
        else:
            series[signal] = answer
    if errors:
        return Samples(now, loading=loading, held=held, doubtful=tuple(dict.fromkeys(errors)))
    ttft = _ttft(series.pop(TTFT))
    nameless = tuple(
        f"a series of {signal} has no label pod"
        for signal in series
        if any("pod" not in s.labels for s in series[signal])
    )

    def look(pod: str) -> ReplicaSignals:
        return _from_series(pod, {signal: _of(pod, found) for signal, found in series.items()})

    replicas, missing, doubtful = _each(serving, look)
    return Samples(now, replicas, ttft, loading, held, missing, (*nameless, *doubtful))


def _each(
    serving: Iterable[str], look: Callable[[str], ReplicaSignals]
) -> tuple[tuple[ReplicaSignals, ...], tuple[str, ...], tuple[str, ...]]:
    """Replicas, and what is missing and doubtful, in the order of the pods' names."""
    replicas: list[ReplicaSignals] = []
    missing: list[str] = []
    doubtful: list[str] = []
    for pod in sorted(serving):
        try:
            replicas.append(look(pod))
        except _Missing as found:
            missing.append(str(found))
        except _Doubtful as found:
            doubtful.append(str(found))
    return tuple(replicas), tuple(missing), tuple(doubtful)


def _page(text: str | None) -> Page | str:
    """What is wrong with it where it can't be read."""
    if text is None:
        return "does not answer on /metrics"
    try:
        return parse(text)
    except ValueError:
        return "answers on /metrics with something else than Prometheus' text format"


def _from_page(pod: str, page: Page, preemptions: float | None) -> ReplicaSignals:
    for signal, values in page.gauges.items():
        if len(values) > 1:
            raise _Doubtful(f"{pod} has {len(values)} series of {GAUGES[signal]}, of which a replica has one")
    return _replica(pod, {signal: values[0] for signal, values in page.gauges.items() if values}, preemptions)


def _from_series(pod: str, series: Mapping[str, Sequence[Series]]) -> ReplicaSignals:
    for found in series.values():
        if len(found) > 1:
            raise _Doubtful(
                f"{pod} is scraped {len(found)} times ({_differences(found)}): leave it one scrape job or monitor"
            )
    values = {signal: found[0].value for signal, found in series.items() if found}
    if SCRAPED not in values:  # while a rate may go on for two minutes
        raise _Missing(
            f"Prometheus has nothing of {pod}: its last scrape failed, or it isn't scraped with the labels namespace and pod"
        )
    age = series[SCRAPED][0].time - values[SCRAPED]
    if not age <= FRESH:
        raise _Missing(f"{pod} was last scraped {age:.0f} s ago: have it scraped every 30 s or more often")
    return _replica(pod, values, values.get(PREEMPTIONS))


def _replica(pod: str, values: Mapping[str, float], preemptions: float | None) -> ReplicaSignals:
    """Raises _Missing. A limit is never guessed: without it nobody knows how full a replica is."""
    lacking = [metric for signal, metric in GAUGES.items() if signal not in values]
    if lacking == [GAUGES[MAX_RUNNING]]:
        raise _Missing(f"{pod} has no {lacking[0]}, its image is too old: set spec.image to one of this release")
    if lacking:
        raise _Missing(f"{pod} has no {', '.join(lacking)}")
    for signal, metric in GAUGES.items():
        if not 0 <= values[signal] < math.inf:
            raise _Missing(f"{pod} says {values[signal]:g} for {metric}")
    if values[MAX_RUNNING] < 1:
        raise _Missing(f"{pod} says {values[MAX_RUNNING]:g} for {GAUGES[MAX_RUNNING]}: it has no engine")
    if preemptions is not None and not 0 <= preemptions < math.inf:
        raise _Missing(f"{pod} has preempted {preemptions:g} times a second, which is no number")
    return ReplicaSignals(
        pod, values[KV_CACHE_USAGE], values[WAITING], values[RUNNING], values[MAX_RUNNING], preemptions
    )


def _of(pod: str, series: Iterable[Series]) -> tuple[Series, ...]:
    return tuple(found for found in series if found.labels.get("pod") == pod)


def _differences(series: Sequence[Series]) -> str:
    """By what the series of one pod can be told apart: `job "a" and "b"`."""
    names = sorted({name for found in series for name in found.labels if name != "__name__"})
    values = {name: sorted({found.labels.get(name, "") for found in series}) for name in names}
    return ", ".join(f"{name} {' and '.join(values[name])}" for name in names if len(values[name]) > 1)


def _ttft(series: Iterable[Series]) -> float | None:
    """None: nobody got a first token, for which Prometheus says NaN."""
    return max((found.value for found in series if math.isfinite(found.value)), default=None)
