"""Takes keys from the queue and reconciles them, a few at a time and never one key twice at once.

Owns the pool, the time limit of one reconcile, what an exception does (one line in the log, back-off) and the resync. Knows
neither kopf nor which cluster it is. Started by `operator` and `up`; `stuck` is what the liveness probe asks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable

from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.queue import KeyQueue

Reconcile = Callable[[Key], Awaitable[float | None]]  # seconds until it wants to be called again
RECONCILE_SECONDS = 120.0  # a reconcile is a handful of calls of some seconds each
RESYNC_SECONDS = (300.0, 600.0)
_LOG = logging.getLogger("pagemill.operator")


class Worker:
    """`run` until cancelled."""

    def __init__(self, queue: KeyQueue, reconcile: Reconcile, *, concurrency: int = 4) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._concurrency = concurrency
        self._began: dict[Key, float] = {}  # what is being worked on, since when
        self._alive = False

    async def run(self) -> None:
        self._alive = True
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work())
        finally:
            self._alive = False

    def stuck(self) -> str | None:
        """Why nothing moves, or None. A reconcile over its time limit was cancelled, so one that is well over it hangs."""
        if not self._alive:
            return "the worker does not run"
        longest = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        return f"a reconcile has run for {longest:.0f}s" if longest > 2 * RECONCILE_SECONDS else None

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            self._began[key] = time.monotonic()
            try:
                await self._reconcile_once(key)
            finally:
                del self._began[key]
                self._queue.done(key)

    async def _reconcile_once(self, key: Key) -> None:
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                again = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - one key's trouble must not end the others
            at_least = error.retry_after if isinstance(error, ClusterError) else 0.0
            seconds = self._queue.fail(key, at_least)
            what = " ".join(f"{type(error).__name__}: {error}".split())
            _LOG.warning("%s/%s: %s; again in %.0fs", key.namespace, key.name, what, seconds)
            _LOG.debug("the reconcile of %s failed", key, exc_info=error)
            return
        self._queue.succeed(key)
        if again is not None:
            self._queue.add(key, again)


async def resync(queue: KeyQueue, refresh: Callable[[], Awaitable[Iterable[Key]]]) -> None:
    """Every five to ten minutes, until cancelled, bring the cache up to date and queue every key: whatever event was lost."""
    while True:
        await asyncio.sleep(random.uniform(*RESYNC_SECONDS))
        try:
            keys = tuple(await refresh())
        except Exception as error:  # noqa: BLE001 - the next round may succeed, and events still come
            _LOG.warning("resync: %s: %s", type(error).__name__, error)
            continue
        for key in keys:
            queue.add(key)
