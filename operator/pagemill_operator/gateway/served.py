"""One deployment while the gateway serves it: its route, the replicas that are ready, what runs on each and who waits for one.

The event loop's thread only. Who changes what: `gateway` the route and the replicas, `proxy` what runs, `waiting_room` who is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from pagemill_operator.gateway.balance import Ring, least_loaded
from pagemill_operator.gateway.route import Route, Target

MOST_AVOIDED_SECONDS = 8.0
OUTCOMES = ("answered", "failed", "cut", "refused", "unavailable", "gone")


class Served:
    """`stirred` is called when the first request is held and when the last one no longer is."""

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.monotonic,
        stirred: Callable[[], None] = lambda: None,
    ) -> None:
        self.route: Route = target.route
        self.replicas: frozenset[str] = target.replicas
        self.running: Counter[str] = Counter()  # requests, by the replica's address
        self.taken: Counter[str] = Counter()  # requests that each of today's replicas was ever asked
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.held = 0  # requests that wait for a replica
        self.held_bytes = 0
        self.gone = False  # the source knows it no longer
        self._clock = clock
        self._stirred = stirred
        self._avoided: dict[str, float] = {}  # until when, by address
        self._failures: Counter[str] = Counter()  # in a row
        self._places: dict[Place, None] = {}  # in the order in which they came
        self._ring: Ring | None = None

    def update(self, target: Target) -> None:
        """What the source says now. Whoever waits looks again."""
        if target == Target(self.route, self.replicas):
            return
        self.route = target.route
        if target.replicas != self.replicas:
            for gone in self.replicas - target.replicas:
                self.trust(gone)
                self.taken.pop(gone, None)
            self.replicas, self._ring = target.replicas, None
        self.stir()

    def pick(self, key: bytes | None = None, tried: Collection[str] = (), patient: bool = False) -> str | None:
        """Who takes a request; None where nobody is left. `key`: what `prefix` routes by.

        Those that are avoided come last; `patient`: not at all.
        """
        left, now = sorted(self.replicas.difference(tried)), self._clock()
        candidates = [address for address in left if self._avoided.get(address, 0.0) <= now]
        if not candidates and not patient:
            candidates = left
        if not candidates:
            return None
        if self.route.routing == "prefix" and key is not None and len(candidates) > 1:
            self._ring = self._ring or Ring(self.replicas)
            return self._ring.pick(key, candidates, self.running)
        return least_loaded(candidates, self.running)

    @contextlib.contextmanager
    def running_on(self, address: str) -> Iterator[None]:
        """As long as it is open the replica has a request of ours."""
        self.running[address] += 1
        if address in self.replicas:
            self.taken[address] += 1
        try:
            yield
        finally:
            self.running[address] -= 1
            if not self.running[address]:
                del self.running[address]

    def avoid(self, address: str) -> None:
        """It could not be reached, or takes nothing new: for a while, longer each time, others are asked."""
        now = self._clock()
        if address not in self.replicas or self._avoided.get(address, 0.0) > now:
            return
        self._failures[address] += 1
        self._avoided[address] = now + min(2.0 ** (self._failures[address] - 1), MOST_AVOIDED_SECONDS)

    def trust(self, address: str) -> None:
        """It has answered."""
        self._avoided.pop(address, None)
        self._failures.pop(address, None)

    def next_look(self) -> float:
        """When the first of those that are avoided may be asked again; infinity where there is none."""
        now = self._clock()
        return min((until for until in self._avoided.values() if until > now), default=math.inf)

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[Place]:
        """As long as it is open one request more, with a body of `size` bytes, waits."""
        place = Place()
        self._places[place] = None
        self.held, self.held_bytes = self.held + 1, self.held_bytes + size
        if self.held == 1:
            self._stirred()
        try:
            yield place
        finally:
            del self._places[place]
            self.held, self.held_bytes = self.held - 1, self.held_bytes - size
            if not self.held:
                self._stirred()

    def leave(self) -> None:
        """Nobody need wait for it any longer."""
        self.gone = True
        self.stir()

    def stir(self) -> None:
        """Have everybody who waits look again; those who came first look first."""
        for place in self._places:
            place.stir()


class Place:
    """Where one request waits."""

    def __init__(self) -> None:
        self._news: asyncio.Future[None] | None = None

    async def change(self, seconds: float) -> None:
        """Until it is worth looking again, or for so long."""
        self._news = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._news

    def stir(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
