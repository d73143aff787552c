"""What the operator's own looks at counters and histograms give over the last minute: rates, and the TTFT's 95th percentile. Pure.

A counter that went down belongs to a server that has started again, and counts from zero, as for Prometheus. Who is looked at
for the first time has no rate yet. Time is the caller's. Called by `samples`, whose caller keeps the `Scraped` for the next look.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pagemill_operator.exposition import Counters

WINDOW = timedelta(seconds=60)
_AT_MOST = 2 * WINDOW  # between two looks: what came meanwhile says nothing of now


@dataclass(frozen=True, slots=True)
class Look:
    """One replica's counters at a moment."""

    time: datetime
    counters: Counters


@dataclass(frozen=True, slots=True)
class Scraped:
    """By pod: the looks within the window, oldest first, and the newest before it."""

    looks: Mapping[str, tuple[Look, ...]] = field(default_factory=dict)

    def preemptions_per_second(self, pod: str) -> float | None:
        """None: not known yet, a rate needs two looks."""
        looks = self.looks.get(pod, ())
        if len(looks) < 2:
            return None
        grown = sum(newer.preemptions - older.preemptions for older, newer in _steps(looks))
        return grown / (looks[-1].time - looks[0].time).total_seconds()

    def ttft(self, quantile: float) -> float | None:
        """Seconds, of all pods together. None: nobody got a first token."""
        grown: dict[float, float] = {}
        for looks in self.looks.values():
            for older, newer in _steps(looks):
                before = dict(older.ttft)
                for bound, count in newer.ttft:
                    grown[bound] = grown.get(bound, 0.0) + count - before.get(bound, 0.0)
        return histogram_quantile(quantile, sorted(grown.items()))


def remember(
    before: Scraped | None, now: datetime, counters: Mapping[str, Counters], serving: Iterable[str]
) -> Scraped:
    """With what was read now. A pod that did not answer keeps its looks until they are too old; one that is gone is forgotten."""
    former = before.looks if before is not None else {}
    looks: dict[str, tuple[Look, ...]] = {}
    for pod in serving:
        kept = _recent(former.get(pod, ()), now)
        if pod in counters:
            if kept and _bounds(kept[-1].counters) != _bounds(counters[pod]):
                kept = ()  # another server under the same name
            kept = (*kept, Look(now, counters[pod]))
        if kept:
            looks[pod] = kept
    return Scraped(looks)


def histogram_quantile(quantile: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """Prometheus' own: linear within the bucket; beyond the last bound that is a number, that bound. None of an empty histogram.

    `buckets`: (upper bound, count at or below it), by bound, the last one's infinite.
    """
    if len(buckets) < 2 or buckets[-1][0] != math.inf or not buckets[-1][1] > 0:
        return None
    rank = quantile * buckets[-1][1]
    below, lower = 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= rank and count > below:
            return lower + (bound - lower) * (rank - below) / (count - below)
        below, lower = max(below, count), bound
    return buckets[-2][0]


def _steps(looks: Sequence[Look]) -> Iterable[tuple[Counters, Counters]]:
    """Pairs of what followed each other; nothing comes before the first look after a new start."""
    for older, newer in itertools.pairwise(looks):
        yield (Counters() if _started_anew(older.counters, newer.counters) else older.counters), newer.counters


def _started_anew(older: Counters, newer: Counters) -> bool:
    fewer = any(count < before for (_, before), (_, count) in zip(older.ttft, newer.ttft, strict=True))
    return fewer or newer.preemptions < older.preemptions


def _recent(looks: Sequence[Look], now: datetime) -> tuple[Look, ...]:
    """Those of the window, and the newest before it unless it is too old; none from a clock that was set back."""
    usable = [look for look in looks if timedelta() < now - look.time <= _AT_MOST]
    within = sum(now - look.time < WINDOW for look in usable)
    return tuple(usable[-within - 1 :])


def _bounds(counters: Counters) -> list[float]:
    return [bound for bound, _ in counters.ttft]
