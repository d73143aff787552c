"""The queue between events and the reconcile: keys, each at most once, each no sooner than it is due.

A key that fails waits longer each time, with jitter; a key that is being worked on is not given out again, but is kept for after.
Knows neither events nor what a key means. `handlers` (or the local cluster) puts in, `worker` takes out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from pagemill_operator.cluster.interface import Key

BACKOFF_START = 1.0  # seconds after the first failure in a row
BACKOFF_CAP = 300.0
EVENT_HOLD = (
    5.0  # seconds after a failure in which events do not hurry the key; later they do: one may be the user's remedy
)


class KeyQueue:
    """For one event loop; not for threads. `clock` gives seconds and `jitter` a factor, so that tests need not wait."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}  # in a row
        self._not_before: dict[Key, float] = {}
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, seconds: float = 0.0) -> None:
        """Make `key` due in `seconds`, or leave it where it is due sooner."""
        due = max(self._clock() + seconds, self._not_before.get(key, 0.0))
        self._due[key] = min(due, self._due.get(key, due))
        self._stirred.set()

    def fail(self, key: Key, at_least: float = 0.0) -> float:
        """Make `key` due after its back-off, or `at_least` seconds; returns which."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(at_least, backoff_seconds(failures) * self._jitter())
        self._not_before[key] = self._clock() + max(at_least, min(seconds, EVENT_HOLD))
        self._due[key] = self._clock() + seconds
        self._stirred.set()
        return seconds

    def succeed(self, key: Key) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def done(self, key: Key) -> None:
        """`key` is no longer worked on; what came in for it meanwhile may be taken."""
        self._running.discard(key)
        self._stirred.set()

    def take_due(self) -> Key | None:
        """The key that has been due for longest, now being worked on; None when there is none."""
        waiting = [(due, key) for key, due in self._due.items() if key not in self._running]
        if not waiting or min(waiting)[0] > self._clock():
            return None
        key = min(waiting)[1]
        del self._due[key]
        self._running.add(key)
        return key

    async def take(self) -> Key:
        """Wait for a key. The taker calls `done`."""
        while (key := self.take_due()) is None:
            self._stirred.clear()
            try:
                await asyncio.wait_for(self._stirred.wait(), self._next_due())
            except TimeoutError:
                continue
        self._stirred.set()  # another taker may find more
        return key

    def _next_due(self) -> float | None:
        due = [due for key, due in self._due.items() if key not in self._running]
        return max(0.0, min(due) - self._clock()) if due else None


def backoff_seconds(failures: int) -> float:
    """After so many failures before this one: 1, 2, 4 … 300 seconds."""
    return min(BACKOFF_CAP, BACKOFF_START * 2.0 ** min(failures, 20))
