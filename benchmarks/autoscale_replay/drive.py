"""Lets an hour pass: requests arrive, steps end, replicas become ready, Prometheus scrapes, somebody decides. One heap of events.

Everything that happens at one moment happens in the order in which it was foreseen, so a run is the same each time.
Used by `compare`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from benchmarks.autoscale_replay.fleet import Fleet, FleetConfig, Member
from benchmarks.autoscale_replay.request import Request
from benchmarks.autoscale_replay.scalers import Scaler

SCRAPE_S = 15.0
REAP_S = 1.0
Event = Callable[[float], None]


@dataclass(slots=True)
class Hour:
    """One run, when it has ended."""

    requests: Sequence[Request]
    fleet: Fleet
    span_s: float  # replicas are counted from 0 to here: the last arrival
    steps: int

    @property
    def replica_seconds(self) -> float:
        return self.fleet.replica_seconds(self.span_s)

    @property
    def late(self) -> int:
        return sum(request.late for request in self.requests)


def run(requests: Sequence[Request], config: FleetConfig, scaler: Scaler, start: int) -> Hour:
    """All requests, from `start` replicas that serve already."""
    return _Drive(requests, config, scaler).run(start)


class _Drive:
    def __init__(self, requests: Sequence[Request], config: FleetConfig, scaler: Scaler) -> None:
        self.fleet = Fleet(config)
        self._requests, self._scaler = requests, scaler
        self._events: list[tuple[float, int, Event]] = []
        self._order = count()
        self._open = len(requests)
        self._steps = 0
        self._born = 0

    def run(self, start: int) -> Hour:
        for member in self.fleet.start(start):
            self._watch(member, 0.0)
        arrivals = iter(self._requests)
        self._next_arrival(arrivals.__next__, 0.0)
        self._at(self._scaler.period_s, self._decide)
        self._at(REAP_S, self._reap)
        while self._open:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return Hour(self._requests, self.fleet, self._requests[-1].at, self._steps)

    def _at(self, time: float, event: Event) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _next_arrival(self, following: Callable[[], Request], now: float) -> None:
        try:
            request = following()
        except StopIteration:
            return
        self._at(request.at, partial(self._arrive, request, following))

    def _arrive(self, request: Request, following: Callable[[], Request], now: float) -> None:
        self._route(request, now)
        self._next_arrival(following, now)

    def _route(self, request: Request, now: float) -> None:
        member = self.fleet.route(request, now)
        if member is not None and not member.stepping:
            self._begin(member, now)

    def _begin(self, member: Member, now: float) -> None:
        seconds = member.replica.begin()
        member.stepping = seconds > 0
        if member.stepping:
            self._steps += 1
            self._at(now + seconds, partial(self._finish, member))

    def _finish(self, member: Member, now: float) -> None:
        self._open -= len(member.replica.finish(now))
        self._begin(member, now)

    def _watch(self, member: Member, now: float) -> None:
        """A new replica: it will be ready, and Prometheus finds it at a moment of its own in each round."""
        self._born += 1
        self._at(member.ready_at, self._ready)
        phase = self._born * 0.618 % 1 * SCRAPE_S
        self._at(now + phase, partial(self._scrape, member))

    def _ready(self, now: float) -> None:
        held, self.fleet.held = self.fleet.held, type(self.fleet.held)()
        for request in held:
            self._route(request, now)

    def _scrape(self, member: Member, now: float) -> None:
        if member not in self.fleet.members:
            return
        if not member.loading(now):
            member.scraped = float(len(member.replica.waiting)), member.replica.kv_usage
        self._at(now + SCRAPE_S, partial(self._scrape, member))

    def _reap(self, now: float) -> None:
        self.fleet.reap(now)
        self._at(now + REAP_S, self._reap)

    def _decide(self, now: float) -> None:
        wanted = self._scaler.wanted(self.fleet, now)
        if wanted != self.fleet.wanted:
            for member in self.fleet.scale(wanted, now):
                self._watch(member, now)
        self._at(now + self._scaler.period_s, self._decide)
