"""Kubernetes' HorizontalPodAutoscaler v2 with one metric, as its controller computes it, in pure functions and one small record.

Written after pkg/controller/podautoscaler (replica_calculator.go, horizontal.go) and the defaults of autoscaling/v2: every 15 s,
a tolerance of a tenth, up by at most 4 pods or 100% in 15 s, down to the largest of the last 300 s' recommendations. Two kinds of
metric: `Pods` (an HPA on a metric of each pod) and `External` with AverageValue (what KEDA makes of a query). Used by `scalers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

SYNC_S = 15.0
TOLERANCE = 0.1
UP_PODS, UP_RATIO, UP_PERIOD_S = 4, 2.0, 15.0
DOWN_WINDOW_S = 300.0


def ceil(value: float) -> int:
    """Values are in thousandths there, so that 2.0000001 is 2."""
    return math.ceil(round(value, 6))


def external(total: float, target: float, current: int, pods: int) -> int:
    """AverageValue of an External metric: its sum over the target, unless that is about what there is."""
    if pods and abs(1.0 - total / (target * pods)) <= TOLERANCE:
        return current
    return ceil(total / target)


def pods(values: Sequence[float], missing: int, target: float, current: int) -> int:
    """A Pods metric: `values` of those that have one, `missing` pods run and have none yet. Nobody has one: nothing changes."""
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if not missing:
        return current if abs(1.0 - ratio) <= TOLERANCE else ceil(ratio * len(values))
    filled = [*values, *([target if ratio < 1.0 else 0.0] * missing)]
    again = sum(filled) / len(filled) / target
    if abs(1.0 - again) <= TOLERANCE or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return current
    wanted = ceil(again * len(filled))
    turned = (again < 1.0 and wanted > current) or (again > 1.0 and wanted < current)
    return current if turned else wanted


@dataclass(slots=True)
class Behavior:
    """The default behavior: what it recommended and added lately."""

    least: int
    most: int
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _added: list[tuple[float, int]] = field(default_factory=list)

    def apply(self, wanted: int, current: int, now: float) -> int:
        """From what the metric says to what is written to `/scale`."""
        self._recommended = [one for one in self._recommended if now - one[0] <= DOWN_WINDOW_S]
        self._recommended.append((now, wanted))
        if wanted < current:
            wanted = min(current, max(number for _, number in self._recommended))
        if wanted > current:
            self._added = [one for one in self._added if now - one[0] < UP_PERIOD_S]
            before = current - sum(number for _, number in self._added)
            limit = max(before + UP_PODS, ceil(before * UP_RATIO))
            wanted = min(wanted, max(current, limit))
        wanted = min(max(wanted, self.least), self.most)
        if wanted > current:
            self._added.append((now, wanted - current))
        return wanted
