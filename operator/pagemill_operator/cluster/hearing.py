"""Whether the watches still speak: every object that a list or an answer has shown must be told of by an event before long.

kopf revives a watch that falls silent, but not a task of its own that has ended; this notices both, whatever the cause. No I/O; the
clock is an argument. Fed by `cache`; `deaf` is what the liveness probe asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 180.0  # seconds, in which the API server must have answered all the while: its absence makes nobody deaf


class Hearing:
    """By kind and uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], int] = {}  # the newest version of it that an event has told of
        self._missing: dict[tuple[str, str], tuple[int, float]] = {}  # the version seen otherwise, and since when

    def expect(self, kind: str, uid: str, version: int) -> None:
        """It was seen in a list or an answer."""
        identity = (kind, uid)
        if version > self._heard.get(identity, 0) and identity not in self._missing:
            self._missing[identity] = (version, self._clock())

    def hear(self, kind: str, uid: str, version: int) -> None:
        """An event told of it."""
        identity = (kind, uid)
        self._heard[identity] = max(version, self._heard.get(identity, 0))
        if identity in self._missing and self._missing[identity][0] <= version:
            del self._missing[identity]

    def forget(self, kind: str, uid: str) -> None:
        """It is gone, or nobody's business any more."""
        self._heard.pop((kind, uid), None)
        self._missing.pop((kind, uid), None)

    def deaf(self, answering_seconds: float) -> str | None:
        """What was not told of in time, or None. `answering_seconds`: for how long the API server has been answering."""
        if not self._missing:
            return None
        (kind, _), (_, since) = min(self._missing.items(), key=lambda entry: entry[1][1])
        seconds = min(self._clock() - since, answering_seconds)
        return (
            f"no event of {kind} objects for {seconds:.0f}s, though there was one to tell"
            if seconds > PATIENCE
            else None
        )
