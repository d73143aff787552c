"""Simulated replicas behind a balancer: loading, serving, draining, gone; who gets the next request, and what the fleet has cost.

It does what the operator does when another number of replicas is wanted: new ones load first, those with the least work drain, a
drain is called off when they are wanted again, and nobody goes with work. Knows nothing of who decides. Driven by `drive`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from benchmarks.autoscale_replay.replica import Replica, ReplicaConfig
from benchmarks.autoscale_replay.request import Request


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What is the same for everybody who decides."""

    replica: ReplicaConfig
    load_s: float  # from wanting a replica until it serves
    drain_s: float = 9.0  # the least that a drain takes: a lame duck's time, and the kubelet finding out
    max_replicas: int = 20


@dataclass(slots=True, eq=False)
class Member:
    """A replica and its place in life."""

    replica: Replica
    created: float
    ready_at: float
    stepping: bool = False  # a step of it is under way
    draining_since: float | None = None
    scraped: tuple[float, float] | None = None  # what Prometheus has of it: waiting, KV usage

    def serves(self, now: float) -> bool:
        return self.draining_since is None and now >= self.ready_at

    def loading(self, now: float) -> bool:
        return now < self.ready_at

    def first_to_go(self, now: float) -> tuple[int, int, float]:
        """As `scale_down` has it: who serves nobody, who drains already, who has least running; of equals the youngest."""
        kind = 0 if self.loading(now) else 1 if self.draining_since is not None else 2
        return kind, self.replica.load, -self.created


@dataclass(slots=True)
class Fleet:
    """`wanted` is what was last decided; members are those that exist, draining ones with them."""

    config: FleetConfig
    wanted: int = 0
    members: list[Member] = field(default_factory=list)
    held: deque[Request] = field(default_factory=deque)  # while nobody serves
    ups: int = 0
    downs: int = 0
    most: int = 0  # replicas at once
    cut: int = 0  # requests that a replica took with it when it went: none, or the fleet is wrong
    _gone_seconds: list[tuple[float, float]] = field(default_factory=list)
    _preemptions: int = 0
    _born: int = 0

    def start(self, replicas: int) -> list[Member]:
        """Replicas that serve from the beginning."""
        self.wanted = replicas
        return [self._add(0.0, 0.0) for _ in range(replicas)]

    def scale(self, wanted: int, now: float) -> list[Member]:
        """Another number is wanted from now on; returns the replicas that are made for it."""
        self.ups += wanted > self.wanted
        self.downs += wanted < self.wanted
        self.wanted = wanted
        ordered = sorted(self.members, key=lambda member: member.first_to_go(now))
        surplus = max(0, len(ordered) - wanted)
        for member in ordered[:surplus]:
            if member.loading(now):
                self._remove(member, now)
            elif member.draining_since is None:
                member.draining_since = now
        for member in ordered[surplus:]:
            member.draining_since = None
        return [self._add(now, now + self.config.load_s) for _ in range(wanted - len(ordered))]

    def route(self, request: Request, now: float) -> Member | None:
        """To the one with the least work; None: it is held."""
        serving = [member for member in self.members if member.serves(now)]
        if not serving:
            self.held.append(request)
            return None
        member = min(serving, key=lambda member: member.replica.load)
        member.replica.waiting.append(request)
        return member

    def reap(self, now: float) -> None:
        """Those that have drained go."""
        for member in [one for one in self.members if one.draining_since is not None]:
            assert member.draining_since is not None
            if member.replica.load == 0 and now - member.draining_since >= self.config.drain_s:
                self._remove(member, now)

    def replica_seconds(self, until: float) -> float:
        """Of all replicas from their making to their end, loading and draining with them."""
        there = [(member.created, until) for member in self.members]
        return sum(max(0.0, min(end, until) - born) for born, end in [*self._gone_seconds, *there])

    @property
    def preemptions(self) -> int:
        return self._preemptions + sum(member.replica.preemptions for member in self.members)

    def _add(self, now: float, ready_at: float) -> Member:
        self._born += 1
        member = Member(Replica(f"replica-{self._born}", self.config.replica), now, ready_at)
        self.members.append(member)
        self.most = max(self.most, len(self.members))
        return member

    def _remove(self, member: Member, now: float) -> None:
        self.cut += member.replica.load
        self.members.remove(member)
        self._gone_seconds.append((member.created, now))
        self._preemptions += member.replica.preemptions
