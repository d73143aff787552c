"""Which one of several operators acts: the election by a Lease, seen by one that runs for it.

`Lease` and `may_take` are values; `Election` is the loop that reads, takes, renews and gives back, and that ends what acts before
the Lease can be another's. Its clock is this machine's own: what another machine writes into a Lease decides nothing but who.
Knows no Kubernetes (`cluster.leases` does the calls). Run by `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from pagemill_operator.cluster.interface import ClusterError

LEASE_SECONDS = 15.0  # others may take it when it has not changed for so long
RENEW_SECONDS = 10.0  # since its last renewal was asked for, the holder acts for so long
RETRY_SECONDS = 2.0  # between two renewals, and between two looks at another's
CALL_SECONDS = 4.0  # of one look or renewal: what was asked for before the deadline is over before another may act
_LOG = logging.getLogger("pagemill.operator")


@dataclass(frozen=True, slots=True)
class Lease:
    """What stands in it. Times are the holder's, for people to read."""

    holder: str  # "" when it was given back
    seconds: float  # how long it counts without being renewed
    acquired: str
    renewed: str
    transitions: int  # how often the holder has changed
    version: str  # resourceVersion; "" for one that is not there yet


class LeaseStore(Protocol):
    """Reads and writes one Lease; raises ClusterError, also where another has written since."""

    async def read(self) -> Lease | None: ...

    async def write(self, lease: Lease) -> Lease:
        """Create it (`version` is empty) or replace that version; returns it as it stands then."""
        ...


def may_take(lease: Lease | None, me: str, now: float, unchanged_since: float) -> bool:
    """Whether `me` may write itself into a Lease that the observer has seen unchanged since then (both by one clock, seconds)."""
    if lease is None or lease.holder in ("", me):
        return True
    return now - unchanged_since > lease.seconds


def taken(lease: Lease | None, me: str, stamp: str) -> Lease:
    """The Lease as `me` writes it, to take or to renew it."""
    if lease is None:
        return Lease(me, LEASE_SECONDS, stamp, stamp, 0, "")
    if lease.holder == me:
        return replace(lease, renewed=stamp, seconds=LEASE_SECONDS)
    return Lease(me, LEASE_SECONDS, stamp, stamp, lease.transitions + 1, lease.version)


class Alone:
    """No election: this operator is the only one."""

    def leads(self) -> bool:
        return True

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        await act()


class Election:
    """One candidate. `leads` is the fence: asked before each write, also by whatever wakes after a long stop of the process."""

    def __init__(self, store: LeaseStore, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._me = me
        self._clock = clock
        self._until = 0.0  # we lead until then
        self._seen: Lease | None = None
        self._unchanged_since = 0.0
        self._stale = True  # `_seen` may not be what stands there now
        self._said = ""

    def leads(self) -> bool:
        return self._clock() < self._until

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: run `act` whenever the Lease is ours, and only then. Ends with `act` if that ends by itself."""
        while True:
            await self._acquire()
            _LOG.info("%s leads", self._me)
            acting = asyncio.ensure_future(act())
            try:
                await self._renew_beside(acting)
            finally:
                lost = not self.leads()
                self._until = 0.0  # no write from here on, whatever `acting` still does
                ended = acting.done()
                acting.cancel()
                await asyncio.wait({acting})
                if not lost:
                    await self._give_back()
            if ended:
                return acting.result()
            _LOG.warning("%s leads no more: the Lease is another's, or could not be renewed in time", self._me)

    async def _acquire(self) -> None:
        while not await self._try(CALL_SECONDS):
            rest = RETRY_SECONDS * random.uniform(0.8, 1.2)
            if self._seen is not None and not self._stale:  # look again as soon as it runs out
                rest = min(rest, max(0.1, self._unchanged_since + self._seen.seconds + 0.1 - self._clock()))
            await asyncio.sleep(rest)

    async def _renew_beside(self, acting: asyncio.Future[None]) -> None:
        """Return when `acting` has ended or the Lease is not ours any more."""
        while True:
            await asyncio.wait({acting}, timeout=max(0.0, min(RETRY_SECONDS, self._until - self._clock())))
            if acting.done() or not self.leads():
                return
            renewed = await self._try(min(CALL_SECONDS, self._until - self._clock()))
            if not renewed and not self._stale:  # what stands there is another's
                self._until = 0.0

    async def _try(self, seconds: float) -> bool:
        """Look and, where we may, write; whether it is ours now. Bounded, and never raises for what a cluster answers."""
        began = self._clock()
        try:
            async with asyncio.timeout(seconds):
                if self._stale or self._seen is None or self._seen.holder != self._me:
                    self._observe(await self._store.read())
                if not may_take(self._seen, self._me, self._clock(), self._unchanged_since):
                    return False
                self._stale = True  # until the answer is here
                self._observe(await self._store.write(taken(self._seen, self._me, _stamp())))
        except (ClusterError, TimeoutError) as error:
            self._stale = True
            self._say(str(error) or f"no answer within {CALL_SECONDS:.0f}s")
            return False
        self._said = ""
        self._until = began + RENEW_SECONDS
        return True

    async def _give_back(self) -> None:
        """So that the next one need not wait; if it fails, it waits."""
        if self._seen is None or self._stale or self._seen.holder != self._me:
            return
        free = replace(self._seen, holder="", renewed=_stamp(), seconds=1.0)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                self._observe(await self._store.write(free))
        except (ClusterError, TimeoutError) as error:
            _LOG.warning("the Lease was not given back: %s", str(error) or "no answer in time")

    def _observe(self, found: Lease | None) -> None:
        if found is None and self._seen is not None and self._seen.holder != self._me:
            found = replace(self._seen, version="")  # a hand deleted it: its holder has its time all the same
        if found != self._seen:
            self._seen, self._unchanged_since = found, self._clock()
        self._stale = False

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            _LOG.warning("the Lease: %s", trouble)
            self._said = trouble


def _stamp() -> str:
    """A MicroTime of the Kubernetes API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
