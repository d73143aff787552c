"""How soon the API server may be asked again, for all callers of one `Api` together.

A 429 says so itself. An outage (no connection, no answer, 503, 504) makes longer and longer pauses, so that a thousand keys cost it
no more requests than one. No I/O; the clock and the jitter are arguments. Used by `api`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

PAUSE_START = 0.5  # seconds
PAUSE_CAP = 10.0  # also the longest time that an API server's return goes unnoticed


class Pace:
    """For one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
        cap: float = PAUSE_CAP,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._cap = cap
        self._failures = 0  # in a row; what fails at the same time counts as one
        self._paused_at = 0.0
        self._not_before = 0.0
        self._answering_since: float | None = None

    def wait_seconds(self) -> float:
        """Until the next call may be made; 0 for now."""
        return max(0.0, self._not_before - self._clock())

    def answering_for(self) -> float:
        """Seconds since the API server first answered after it last did not; 0 while it does not."""
        return 0.0 if self._answering_since is None else self._clock() - self._answering_since

    def failed(self, began: float) -> None:
        """A call that was made at `began` found nobody, or somebody who can't."""
        self._answering_since = None
        if began < self._paused_at:  # the same trouble as one that has told us already
            return
        self._pause(min(self._cap, PAUSE_START * 2.0 ** min(self._failures, 20)) * self._jitter())
        self._failures += 1
        self._paused_at = self._clock()

    def told(self, seconds: float) -> None:
        """The API server asks to be left alone."""
        self._pause(seconds)

    def succeeded(self) -> None:
        self._failures = 0
        if self._answering_since is None:
            self._answering_since = self._clock()

    def _pause(self, seconds: float) -> None:
        self._not_before = max(self._not_before, self._clock() + seconds)
