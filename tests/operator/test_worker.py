"""The worker pool: what runs at once, what an exception does, when it calls itself stuck."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import pytest

from pagemill_operator import worker as worker_module
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.queue import KeyQueue
from pagemill_operator.worker import Reconcile, Worker, resync

KEYS = [Key("default", name) for name in "abc"]


@contextlib.asynccontextmanager
async def running(queue: KeyQueue, reconcile: Reconcile) -> AsyncIterator[Worker]:
    worker = Worker(queue, reconcile)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_keys_run_beside_each_other_but_never_one_twice_at_once() -> None:
    queue, now, most, total = KeyQueue(), Counter[Key](), Counter[Key](), Counter[Key]()
    enough = asyncio.Event()

    async def reconcile(key: Key) -> None:
        now[key] += 1
        most[key] = max(most[key], now[key])
        most[Key("", "all")] = max(most[Key("", "all")], sum(now.values()))
        total[key] += 1
        queue.add(key)  # an event about it arrives meanwhile
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now[key] -= 1
        if min(total[each] for each in KEYS) >= 10:
            enough.set()

    async with running(queue, reconcile):
        for key in KEYS:
            queue.add(key)
        await enough.wait()
    assert [most[key] for key in KEYS] == [1, 1, 1]
    assert most[Key("", "all")] == len(KEYS)


async def test_an_exception_is_one_line_and_a_later_try(caplog: pytest.LogCaptureFixture) -> None:
    queue, tries, served = KeyQueue(jitter=lambda: 0.001), Counter[Key](), asyncio.Event()
    bad, good = KEYS[0], KEYS[1]

    async def reconcile(key: Key) -> None:
        tries[key] += 1
        if key == bad and tries[key] <= 2:
            raise ClusterError("the API server\nis away")
        if tries[bad] == 3:
            served.set()

    with caplog.at_level(logging.WARNING, "pagemill.operator"):
        async with running(queue, reconcile):
            queue.add(bad)
            queue.add(good)
            await served.wait()
    assert tries[good] == 1
    assert [record.getMessage() for record in caplog.records] == [
        "default/a: ClusterError: the API server is away; again in 0s"
    ] * 2


async def test_it_comes_back_when_the_reconcile_asks_for_it() -> None:
    queue, calls, twice = KeyQueue(), Counter[Key](), asyncio.Event()

    async def reconcile(key: Key) -> float | None:
        calls[key] += 1
        if calls[key] == 2:
            twice.set()
            return None
        return 0.01

    async with running(queue, reconcile):
        queue.add(KEYS[0])
        await twice.wait()
    assert len(queue) == 0


async def test_a_reconcile_that_hangs_is_cut_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RECONCILE_SECONDS", 0.01)
    queue, calls, again = KeyQueue(jitter=lambda: 0.001), Counter[Key](), asyncio.Event()

    async def reconcile(key: Key) -> None:
        calls[key] += 1
        if calls[key] == 2:
            again.set()
        else:
            await asyncio.Event().wait()

    async with running(queue, reconcile):
        queue.add(KEYS[0])
        await again.wait()


async def test_stuck_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RECONCILE_SECONDS", 0.01)
    queue, begun, release = KeyQueue(), asyncio.Event(), asyncio.Event()

    async def reconcile(key: Key) -> None:
        begun.set()
        while not release.is_set():  # deaf to being cancelled
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    async with running(queue, reconcile) as worker:
        assert worker.stuck() is None
        queue.add(KEYS[0])
        await begun.wait()
        while (why := worker.stuck()) is None:  # noqa: ASYNC110 - time itself is waited for
            await asyncio.sleep(0.01)
        assert why.startswith("a reconcile has run for")
        release.set()
    assert worker.stuck() is None, "a standby's worker does nothing, and is well"


async def test_what_was_cut_short_is_begun_again_by_whoever_works_next() -> None:
    queue, begun = KeyQueue(), asyncio.Event()

    async def hang(_: Key) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(queue, hang):
        queue.add(KEYS[0])
        await begun.wait()
    assert queue.take_due() == KEYS[0]


async def test_each_reconcile_is_recorded_with_its_time_and_whether_it_failed() -> None:
    queue, recorded, both = KeyQueue(), list[tuple[float, bool]](), asyncio.Event()

    async def reconcile(key: Key) -> None:
        if key == KEYS[0]:
            raise ClusterError("away")

    def record(seconds: float, failed: bool) -> None:
        recorded.append((seconds, failed))
        if len(recorded) == 2:
            both.set()

    worker = Worker(queue, reconcile, concurrency=1, record=record)
    for key in KEYS[:2]:
        queue.add(key)
    task = asyncio.create_task(worker.run())
    await both.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [failed for _, failed in recorded] == [True, False]
    assert all(0 <= seconds < 5 for seconds, _ in recorded)


@pytest.mark.parametrize("by", ["its time", "being wanted"])
async def test_a_resync_queues_every_key_and_outlives_a_failure(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RESYNC_SECONDS", (0.0, 0.0) if by == "its time" else (600.0, 600.0))
    monkeypatch.setattr(worker_module, "RESYNC_SETTLE", 0.0)
    monkeypatch.setattr(worker_module, "RESYNC_REST", (0.0, 0.0))
    queue, rounds, wanted = KeyQueue(), Counter[str](), asyncio.Event()

    async def refresh() -> Iterable[Key]:
        rounds["all"] += 1
        if rounds["all"] == 1:
            raise ClusterError("away")
        return KEYS

    task = asyncio.create_task(resync(queue, refresh, wanted))
    if by == "being wanted":
        wanted.set()
    taken = {await asyncio.wait_for(queue.take(), 60) for _ in KEYS}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert taken == set(KEYS)


async def test_a_resync_that_is_not_wanted_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RESYNC_SETTLE", 0.0)
    monkeypatch.setattr(worker_module, "RESYNC_REST", (0.0, 0.0))
    wanted, rounds = asyncio.Event(), Counter[str]()

    async def refresh() -> Iterable[Key]:
        rounds["all"] += 1
        return ()

    task = asyncio.create_task(resync(KeyQueue(), refresh, wanted))
    wanted.set()
    while not rounds["all"]:  # noqa: ASYNC110 - time itself is waited for
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert rounds["all"] == 1
