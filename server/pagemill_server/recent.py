"""The newest observations of a few metrics, for medians of the last minute: a histogram's buckets are too coarse for a page.

Fed by `metrics.Metrics.observe`, read by `api/blocks`. Bounded: at many tokens a second it reaches less far back.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

WINDOW = 60.0  # seconds
KEPT = 2048  # observations of each metric


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of `count` observations."""

    count: int
    p50: float
    p95: float


class Recent:
    def __init__(self, names: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, deque[tuple[float, float]]] = {name: deque(maxlen=KEPT) for name in names}

    def add(self, name: str, value: float) -> None:
        """From any thread; what is none of the names is not kept."""
        kept = self._kept.get(name)
        if kept is not None:
            kept.append((self._clock(), value))

    def quantiles(self, name: str) -> Quantiles | None:
        """None where nothing was observed within the window."""
        since = self._clock() - WINDOW
        values = sorted(value for when, value in tuple(self._kept[name]) if when >= since)
        if not values:
            return None
        return Quantiles(len(values), _nearest(values, 0.5), _nearest(values, 0.95))


def _nearest(values: list[float], share: float) -> float:
    """The nearest-rank quantile of sorted values: one that was observed, never one in between."""
    return values[math.ceil(share * len(values)) - 1]
