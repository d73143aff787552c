"""What changes on a running engine, what may wait in front of it, and when it counts as stuck. No sleeps, as in test_loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pagemill.failures import PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.errors import EngineDead, QueueFull
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.policies.guarded import Guarded
from pagemill_server.engine.policies.priority import Priority
from pagemill_server.engine.request import RequestOutput
from pagemill_server.engine.schedule import SchedulerOutput
from tests.server.engine.scripted import answer, make_engine, make_request, token_ids
from tests.server.engine.test_loop import ENDLESS, Gate, engine_loop, read, soon, until

HERE = "tests.server.engine.test_loop_hot"


class MadeOnce(Policy):
    """Can be made when it is tried, and not when it is wanted."""

    made = 0

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        type(self).made += 1
        if self.made > 1:
            raise ValueError("only once")


class Hostile(Policy):
    def key(self, sequence: object) -> tuple[float, ...]:
        raise RuntimeError("told to")

    turn = admit = key  # type: ignore[assignment]


async def test_streams_live_through_every_change() -> None:
    requests = [make_request(5 + i, max_tokens=60 + i, priority=i % 3) for i in range(12)]
    async with engine_loop(num_blocks=64, max_num_seqs=8) as (loop, runner, gate):
        gate.close()
        reading = [asyncio.ensure_future(read(loop.submit(request))) for request in requests]
        await asyncio.to_thread(gate.entered.acquire)
        changes = [
            {"policy": "priority"},
            {"max_num_seqs": 1},
            {"max_num_batched_tokens": 2, "max_num_seqs": 8},
            {"policy": "fair"},
            {"policy": f"{HERE}:Hostile", "max_num_batched_tokens": 64},
            {"policy": "deadline", "ttft_ms": 5.0},
            {"max_num_queued_reqs": 1, "policy": "fcfs"},
        ]
        for change in changes:
            loop.configure(replace(loop.config, **change))  # type: ignore[arg-type]
            steps = len(runner.steps) + 5
            gate.let(5)
            await until(lambda steps=steps: len(runner.steps) >= steps)  # type: ignore[misc]
        gate.open()
        answers = await soon(asyncio.gather(*reading))
        for request, outputs in zip(requests, answers, strict=True):
            assert token_ids(outputs) == answer(request.prompt_token_ids, request.sampling.max_tokens)


async def test_a_change_holds_from_the_next_step_on() -> None:
    async with engine_loop(num_blocks=ENDLESS, max_num_seqs=4) as (loop, runner, gate):
        gate.close()
        streams = [loop.submit(make_request(3, max_tokens=10**6)) for _ in range(6)]
        await asyncio.to_thread(gate.entered.acquire)
        runner.config = replace(loop.config, max_num_seqs=6, policy="priority")
        loop.configure(runner.config)
        assert (loop.config.max_num_seqs, loop.config.policy) == (6, "priority")
        gate.open()
        await until(lambda: loop.stats.num_running == 6)
        policy = loop._engine.scheduler.roster.policy
        assert isinstance(policy, Guarded)
        assert isinstance(policy.inner, Priority)
        for stream in streams:
            await stream.aclose()
        await until(lambda: not loop._busy)


@pytest.mark.parametrize(
    "change",
    [{"policy": "lifo"}, {"policy": "nowhere_of_test:P"}, {"max_num_seqs": 0}, {"aging_seconds": float("nan")}],
)
async def test_what_cannot_be_changes_nothing(change: dict[str, object]) -> None:
    async with engine_loop() as (loop, _, _):
        before = loop.config
        with pytest.raises(PagemillError):
            loop.configure(replace(before, **change))  # type: ignore[arg-type]
        assert loop.config is before
        assert len(token_ids(await soon(read(loop.submit(make_request(3)))))) == 4
        assert loop._engine.config is before


async def test_a_policy_that_fails_at_the_last_moment_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    MadeOnce.made = 0
    async with engine_loop() as (loop, _, _):
        before = loop.config
        loop.configure(replace(before, policy=f"{HERE}:MadeOnce"))
        assert len(token_ids(await soon(read(loop.submit(make_request(3)))))) == 4
        assert loop.config == before
        assert "the scheduler stays as it was" in caplog.text


async def test_an_engine_that_ended_is_not_changed() -> None:
    engine, _ = make_engine()
    loop = EngineLoop(engine)
    await soon(loop.stop())
    with pytest.raises(EngineDead):
        loop.configure(SchedulerConfig())


async def test_a_burst_between_two_steps_does_not_slip_through() -> None:
    async with engine_loop(num_blocks=ENDLESS, max_num_seqs=2) as (loop, _, gate):
        loop.configure(replace(loop.config, max_num_queued_reqs=3, max_num_queued_tokens=100))
        gate.close()
        first = loop.submit(make_request(3, max_tokens=2))
        await asyncio.to_thread(gate.entered.acquire)
        streams = []
        for _ in range(4):  # one on its way finds the other place, three wait; the engine is in a step all the while
            loop.check_queue(1, 3)
            streams.append(loop.submit(make_request(3, max_tokens=2)))
        with pytest.raises(QueueFull) as full:
            loop.check_queue(1, 3)
        assert full.value.bound == "max_num_queued_reqs"
        assert full.value.retry_after >= 1
        gate.open()
        await soon(asyncio.gather(*[read(stream) for stream in [first, *streams]]))
        loop.check_queue(1, 3)


async def test_n_counts_n() -> None:
    async with engine_loop(num_blocks=ENDLESS, max_num_seqs=1) as (loop, _, gate):
        loop.configure(replace(loop.config, max_num_queued_reqs=3))
        gate.close()
        stream = loop.submit(make_request(3, max_tokens=1, sampling={"n": 3}))
        with pytest.raises(QueueFull):
            loop.check_queue(2, 0)
        loop.check_queue(1, 0)
        gate.open()
        await soon(read(stream))


def stuck_loop(num_host_blocks: int = 0) -> tuple[EngineLoop, Gate, list[float]]:
    now = [100.0]
    engine, runner = make_engine(num_host_blocks=num_host_blocks, clock=lambda: now[0])
    gate = Gate(runner)
    return EngineLoop(engine, clock=lambda: now[0]), gate, now


async def test_a_step_that_hangs_is_a_stall_whatever_is_sent_meanwhile() -> None:
    loop, gate, now = stuck_loop()
    gate.close()
    stream = loop.submit(make_request(3))
    await asyncio.to_thread(gate.entered.acquire)
    now[0] = 150.0
    other = loop.submit(make_request(3))
    loop.configure(loop.config)
    await stream.aclose()
    now[0] = 200.0
    assert loop.stalled_for() == 100.0
    gate.open()
    await soon(read(other))
    await until(lambda: not loop._busy)
    assert loop.stalled_for() == 0.0
    await soon(loop.stop())


async def test_a_fetch_that_never_ends_is_a_stall() -> None:
    loop, _, now = stuck_loop(num_host_blocks=16)
    prompt = tuple(range(16))
    await soon(read(loop.submit(make_request(prompt))))
    await soon(read(loop.submit(make_request(28))))  # the first one's blocks go to the host
    runner = loop._engine._runner
    turns = 0

    def nothing_arrives(output: SchedulerOutput) -> tuple[frozenset[int], float]:
        nonlocal turns
        turns += 1
        return frozenset(), 0.0

    arrives, runner._fetched = runner._fetched, nothing_arrives  # type: ignore[attr-defined]
    reading: asyncio.Future[list[RequestOutput]] = asyncio.ensure_future(read(loop.submit(make_request((*prompt, 99)))))
    await until(lambda: loop.stats.num_running == 1 and turns > 3)
    now[0] = 160.0
    assert loop.stalled_for() == 60.0
    seen = turns
    await until(lambda: turns > seen + 3)
    assert loop.stalled_for() == 60.0
    runner._fetched = arrives  # type: ignore[attr-defined]
    assert token_ids(await soon(reading)) == answer((*prompt, 99), 4)
    assert loop.stalled_for() == 0.0
    await soon(loop.stop())
