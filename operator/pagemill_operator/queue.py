"""The queue between events and the reconcile: keys, each at most once, each no sooner than it is due.

A key that fails waits longer each time, with jitter; a key that is being worked on is not given out again, but is kept for after.
Who comes at once (an event) goes before who asked for a later look: a thousand replicas that don't answer, each of which costs a
look its time-out, must not keep a new deployment waiting. One in a few goes to the looks, so that they come as well.
Knows neither events nor what a key means. `handlers` (or the local cluster) puts in, `worker` takes out.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable

from pagemill_operator.cluster.interface import Key

BACKOFF_START = 1.0  # seconds after the first failure in a row
BACKOFF_CAP = 300.0
LOOK_TURN = 4  # of so many keys given out while both kinds are due, one is a later look
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
        self._due: dict[Key, float] = {}  # what counts
        self._at_once, self._later = _Order(), _Order()  # the same in order, of keys not in work
        self._turn = 0
        self._looks: set[Key] = set()  # of `_due`: those that asked for a later look
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}  # in a row
        self._not_before: dict[Key, float] = {}
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, seconds: float = 0.0) -> None:
        """Make `key` due in `seconds`, or leave it where it is due sooner."""
        due = max(self._clock() + seconds, self._not_before.get(key, 0.0))
        if due < self._due.get(key, float("inf")):
            self._set(key, due, later=seconds > 0)
        elif seconds <= 0 and key in self._looks:  # due already, but at the end of the line
            self._set(key, self._due[key], later=False)

    def fail(self, key: Key, at_least: float = 0.0) -> float:
        """Make `key` due after its back-off, or `at_least` seconds; returns which."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(at_least, backoff_seconds(failures) * self._jitter())
        self._not_before[key] = self._clock() + max(at_least, min(seconds, EVENT_HOLD))
        self._set(key, self._clock() + seconds, later=True)
        return seconds

    def succeed(self, key: Key) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def done(self, key: Key) -> None:
        """`key` is no longer worked on; what came in for it meanwhile may be taken."""
        self._running.discard(key)
        if key in self._due:
            self._set(key, self._due[key], later=key in self._looks)

    def take_due(self) -> Key | None:
        """The key whose turn it is, now being worked on; None when none is due."""
        found = self._first(self._clock())
        if found is None:
            return None
        order, _, key = found
        self._turn = (self._turn + 1) % LOOK_TURN
        order.pop()
        del self._due[key]
        self._looks.discard(key)
        self._running.add(key)
        return key

    def oldest_seconds(self) -> float:
        """How long the key that is due for longest has been waiting; 0 when none is due."""
        due = self._earliest()
        return max(0.0, self._clock() - due) if due is not None else 0.0

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
        due = self._earliest()
        return max(0.0, due - self._clock()) if due is not None else None

    def _set(self, key: Key, due: float, *, later: bool) -> None:
        self._due[key] = due
        (self._looks.add if later else self._looks.discard)(key)
        if key not in self._running:
            (self._later if later else self._at_once).push(due, key)
            self._stirred.set()
        for order in (self._at_once, self._later):
            order.shrink(len(self._due), self._counts)

    def _first(self, now: float) -> tuple[_Order, float, Key] | None:
        """The line whose turn it is among those that have somebody who is due, and its first."""
        lines = (self._later, self._at_once) if self._turn == LOOK_TURN - 1 else (self._at_once, self._later)
        for order in lines:
            first = order.first(self._counts)
            if first is not None and first[0] <= now:
                return order, *first
        return None

    def _earliest(self) -> float | None:
        firsts = [first for order in (self._at_once, self._later) if (first := order.first(self._counts))]
        return min(firsts)[0] if firsts else None

    def _counts(self, order: _Order, due: float, key: Key) -> bool:
        """Whether an entry has not been overtaken by another of its key."""
        here = self._later if key in self._looks else self._at_once
        return order is here and self._due.get(key) == due and key not in self._running


_Counts = Callable[["_Order", float, Key], bool]


class _Order:
    """Keys by when they are due, with entries among them that count no more: they are thrown away when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due: float, key: Key) -> None:
        heapq.heappush(self._heap, (due, key))

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def first(self, counts: _Counts) -> tuple[float, Key] | None:
        """The first entry that counts."""
        while self._heap and not counts(self, *self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def shrink(self, waiting: int, counts: _Counts) -> None:
        """Throw those away at once that count no more, where they are most."""
        if len(self._heap) > 2 * waiting + 64:
            self._heap = sorted({entry for entry in self._heap if counts(self, *entry)})


def backoff_seconds(failures: int) -> float:
    """After so many failures before this one: 1, 2, 4 … 300 seconds."""
    return min(BACKOFF_CAP, BACKOFF_START * 2.0 ** min(failures, 20))
