"""Settings of equal cost: the target at which a rule uses as many replica-hours as the operator did, and is late least often.

More replicas are used the lower a target is, by and large. But the same hours can come from a target that scales in time and from
one that lets a backlog grow which then takes as many: so the whole range is looked through, each place where the hours are
crossed is narrowed down, and of all that come close the best is taken. Called by `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.autoscale_replay.drive import Hour

EQUAL = 0.02  # of the hours: what counts as equal
FACTOR = 1.6  # between two targets of the first look through the range
FAR = 1.4  # times the hours: two targets in a row that use more end that look
NARROW = 4  # halvings at each crossing


@dataclass(frozen=True, slots=True)
class Match:
    """The best of those that are near enough; the nearest of all, if none is."""

    target: float
    hour: Hour
    off: float  # its replica-seconds beside those that were wanted, relative
    tries: int


def match(run: Callable[[float], Hour], seconds: float, low: float, high: float) -> Match:
    """The target between `low` and `high` for `seconds` of replicas."""
    found: list[Match] = []

    def attempt(target: float) -> float:
        hour = run(target)
        off = hour.replica_seconds / seconds - 1
        found.append(Match(target, hour, off, len(found) + 1))
        return off

    first = _look_through(attempt, low, high)
    for (high_target, off), (low_target, low_off) in pairwise(first):
        if off < 0 <= low_off:
            _narrow(attempt, low_target, high_target)
    near = [one for one in found if abs(one.off) <= EQUAL]
    best = min(near, key=lambda one: one.hour.late) if near else min(found, key=lambda one: abs(one.off))
    return Match(best.target, best.hour, best.off, len(found))


def _look_through(attempt: Callable[[float], float], low: float, high: float) -> list[tuple[float, float]]:
    """From the highest target down."""
    first: list[tuple[float, float]] = []
    target = high
    while target >= low and not (len(first) > 1 and all(off > FAR - 1 for _, off in first[-2:])):
        first.append((target, attempt(target)))
        target /= FACTOR
    return first


def _narrow(attempt: Callable[[float], float], low: float, high: float) -> None:
    for _ in range(NARROW):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if attempt(middle) > 0 else (low, middle)
