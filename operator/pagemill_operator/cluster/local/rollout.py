"""How many pods each revision of a Deployment should have next: Kubernetes' own rolling update, as a pure function.

Knows counts only. `controllers` calls it after every change and makes the difference true; with `Replace` (surge 0,
maxUnavailable 1) an old pod goes first, with `Surge` (surge 1, maxUnavailable 0) a new one must be ready first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Revision:
    """One ReplicaSet: what it is told to have, and how many of its pods (terminating ones aside) there are and are ready."""

    name: str
    replicas: int
    pods: int
    ready: int
    terminating: int = 0


@dataclass(frozen=True, slots=True)
class Strategy:
    """`Recreate`, or a rolling update within absolute bounds."""

    recreate: bool
    max_surge: int
    max_unavailable: int


def read_strategy(spec: Mapping[str, Any], replicas: int) -> Strategy:
    """The strategy of a Deployment's spec; a percentage of surge rounds up, one of unavailability down, never both to 0."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Strategy(True, 0, replicas)
    rolling = strategy.get("rollingUpdate") or {}
    surge = _absolute(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _absolute(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Strategy(False, surge, min(unavailable, replicas))


def next_counts(desired: int, strategy: Strategy, new: Revision, old: Sequence[Revision]) -> dict[str, int]:
    """Replicas for each revision, by name, one step on. `new` is the wanted revision, `old` the others, oldest first."""
    if strategy.recreate:
        if any(revision.pods or revision.terminating for revision in old):
            return {revision.name: 0 for revision in old} | {new.name: new.replicas}
        return {revision.name: 0 for revision in old} | {new.name: desired}
    counts = {revision.name: revision.replicas for revision in (*old, new)}
    counts[new.name] = _grow_new(desired, strategy, new, old)
    _shrink_old(desired, strategy, new, old, counts)
    return counts


def _grow_new(desired: int, strategy: Strategy, new: Revision, old: Sequence[Revision]) -> int:
    if new.replicas >= desired:
        return desired
    room = desired + strategy.max_surge - new.replicas - sum(revision.replicas for revision in old)
    return new.replicas + max(0, min(room, desired - new.replicas))


def _shrink_old(
    desired: int, strategy: Strategy, new: Revision, old: Sequence[Revision], counts: dict[str, int]
) -> None:
    """Old pods that are not ready go first: they serve nobody. Ready ones go as far as the availability bound allows."""
    minimum = desired - strategy.max_unavailable
    total = new.replicas + sum(revision.replicas for revision in old)
    may_go = total - minimum - max(0, new.replicas - new.ready)
    for revision in old:
        unready = max(0, revision.replicas - revision.ready)
        gone = max(0, min(unready, may_go))
        counts[revision.name] -= gone
        may_go -= gone
    spare = new.ready + sum(revision.ready for revision in old) - minimum
    for revision in old:
        ready = min(revision.ready, counts[revision.name])
        gone = max(0, min(ready, spare, may_go))
        counts[revision.name] -= gone
        spare -= gone
        may_go -= gone


def _absolute(value: int | str, of: int, rounding: Any) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return int(rounding(int(value[:-1]) * of / 100))
    return int(value)
