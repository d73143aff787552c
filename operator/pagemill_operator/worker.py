"""Takes keys from the queue and reconciles them, a few at a time and never one key twice at once.

Owns the pool, the time limit of one reconcile, what an exception does (one line in the log, back-off) and the resync. Knows
neither kopf nor which cluster it is, nor whether it may act. Started by `operator`, while it leads, and by `up`; `stuck` is what
the liveness probe asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable

from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.queue import KeyQueue

Reconcile = Callable[[Key], Awaitable[float | None]]  # seconds until it wants to be called again
CONCURRENCY = 16  # most of a reconcile is waiting, two seconds of it for a replica that does not answer
RECONCILE_SECONDS = 120.0  # a reconcile is a handful of calls of some seconds each
RESYNC_SECONDS = (300.0, 600.0)
RESYNC_REST = (10.0, 20.0)  # after one before another that is asked for, or that follows a failure
RESYNC_SETTLE = 2.0  # what asks for one comes in swarms
_LOG = logging.getLogger("pagemill.operator")


class Worker:
    """`run` until cancelled, and again whenever it may. `record` is told of each reconcile: seconds, and whether it failed."""

    def __init__(
        self,
        queue: KeyQueue,
        reconcile: Reconcile,
        *,
        concurrency: int = CONCURRENCY,
        record: Callable[[float, bool], None] = lambda seconds, failed: None,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._concurrency = concurrency
        self._record = record
        self._began: dict[Key, float] = {}  # what is being worked on, since when

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    def stuck(self) -> str | None:
        """Why nothing moves, or None. A reconcile over its time limit was cancelled, so one that is well over it hangs."""
        longest = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        return f"a reconcile has run for {longest:.0f}s" if longest > 2 * RECONCILE_SECONDS else None

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            self._began[key] = time.monotonic()
            try:
                succeeded = await self._reconcile_once(key)
                self._record(time.monotonic() - self._began[key], not succeeded)
            except asyncio.CancelledError:  # cut short: whoever works next begins with it
                self._queue.add(key)
                raise
            finally:
                del self._began[key]
                self._queue.done(key)

    async def _reconcile_once(self, key: Key) -> bool:
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                again = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - one key's trouble must not end the others
            at_least = error.retry_after if isinstance(error, ClusterError) else 0.0
            seconds = self._queue.fail(key, at_least)
            what = " ".join(f"{type(error).__name__}: {error}".split())
            _LOG.warning("%s/%s: %s; again in %.0fs", key.namespace, key.name, what, seconds)
            _LOG.debug("the reconcile of %s failed", key, exc_info=error)
            return False
        self._queue.succeed(key)
        if again is not None:
            self._queue.add(key, again)
        return True


async def resync(
    queue: KeyQueue, refresh: Callable[[], Awaitable[Iterable[Key]]], wanted: asyncio.Event | None = None
) -> None:
    """Every five to ten minutes, until cancelled, bring the cache up to date and queue every key: whatever event was lost.

    Sooner when it is `wanted`: a watch that had to begin anew, or a lead that has just begun, may have missed a deletion.
    """
    wanted = wanted or asyncio.Event()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(*RESYNC_SECONDS)):
                await wanted.wait()
                await asyncio.sleep(RESYNC_SETTLE)
        wanted.clear()
        try:
            keys = tuple(await refresh())
        except Exception as error:  # noqa: BLE001 - the next round may succeed, and events still come
            _LOG.warning("resync: %s: %s", type(error).__name__, error)
            wanted.set()
        else:
            for key in keys:
                queue.add(key)
        await asyncio.sleep(random.uniform(*RESYNC_REST))
