"""The engine's thread against a real event loop. No sleeps: a gate in the runner says when a step may go on."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest

from pagemill_server.engine.errors import EngineDead, KVCacheCorrupted, RequestTooLarge
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.ports import EngineClient, OutputStream
from pagemill_server.engine.request import FinishReason, RequestOutput
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import SlotRunner, answer, make_engine, make_request, token_ids

T = TypeVar("T")

PATIENCE = 60.0  # seconds until a test that hangs fails
ENDLESS = 20_000  # blocks: room for an answer that takes the runner minutes


class Gate:
    """Holds the runner at the start of each step until it is let through; open from the start."""

    def __init__(self, runner: SlotRunner) -> None:
        self._open = threading.Event()
        self._open.set()
        self._let = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        runner.before = self._wait

    def _wait(self) -> None:
        self.entered.release()
        if not self._open.is_set():
            assert self._let.acquire(timeout=PATIENCE)

    def close(self) -> None:
        self._open.clear()
        while self._let.acquire(blocking=False):
            pass

    def let(self, steps: int) -> None:
        """Closed, but for so many steps."""
        self._let.release(steps)

    def open(self) -> None:
        self._open.set()
        self._let.release()  # for a step that waits already


@asynccontextmanager
async def engine_loop(
    *, num_blocks: int = 8, max_num_seqs: int = 64
) -> AsyncIterator[tuple[EngineLoop, SlotRunner, Gate]]:
    engine, runner = make_engine(num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    gate = Gate(runner)
    loop = EngineLoop(engine)
    try:
        yield loop, runner, gate
    finally:
        gate.open()
        await asyncio.wait_for(loop.stop(), PATIENCE)
        loop._thread.join(PATIENCE)
        assert not loop._thread.is_alive()
        assert engine.kv_cache.num_held == 0


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110  the engine's thread has no event that a test could wait for
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), PATIENCE)


async def read(stream: OutputStream) -> list[RequestOutput]:
    return [output async for output in stream]


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE)


def idle(client: EngineClient) -> bool:
    stats = client.stats
    return (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)


async def test_requests_are_answered() -> None:
    async with engine_loop() as (loop, _, _):
        requests = [make_request(1 + i, max_tokens=1 + 2 * i) for i in range(10)]
        answers = await soon(asyncio.gather(*[read(loop.submit(request)) for request in requests]))
        for request, outputs in zip(requests, answers, strict=True):
            assert token_ids(outputs) == answer(request.prompt_token_ids, request.sampling.max_tokens)
        assert idle(loop), "who has read a last output sees the request gone from the gauges"
        assert loop.stats.generation_tokens == sum(request.sampling.max_tokens for request in requests)


async def test_a_request_runs_from_submit_and_not_from_the_first_read() -> None:
    async with engine_loop() as (loop, _, _):
        stream = loop.submit(make_request(3, max_tokens=5))
        await until(lambda: loop.stats.generation_tokens == 5)
        assert len(token_ids(await soon(read(stream)))) == 5


@pytest.mark.parametrize("how", ["aclose", "cancel", "drop"])
async def test_a_client_that_hangs_up_frees_its_blocks(how: str) -> None:
    async with engine_loop(num_blocks=ENDLESS) as (loop, _, _):
        stream = loop.submit(make_request(3, max_tokens=10**6))
        first = await soon(stream.__anext__())
        assert first.finish_reason is None
        assert loop.stats.num_running == 1
        if how == "aclose":
            await stream.aclose()
            assert await soon(read(stream)) == []
        elif how == "cancel":
            reader = asyncio.create_task(read(stream))
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        else:
            del stream
            gc.collect()
        await until(lambda: idle(loop))
        assert loop.stats.generation_tokens < 10**6
        assert loop.stalled_for() == 0.0


async def test_a_client_that_hangs_up_while_it_waits_never_runs() -> None:
    async with engine_loop(max_num_seqs=1, num_blocks=ENDLESS) as (loop, runner, _):
        running = loop.submit(make_request(3, max_tokens=10**6))
        await soon(running.__anext__())
        async with aclosing(loop.submit(make_request(3))):
            await until(lambda: loop.stats.num_waiting == 1)
        await until(lambda: loop.stats.num_waiting == 0)
        assert loop.stats.num_running == 1
        await running.aclose()
        await until(lambda: idle(loop))
        assert {entry.seq_id for step in runner.steps for entry in step.sequences} == {0}


async def test_a_stream_read_to_its_end_aborts_nobody() -> None:
    async with engine_loop() as (loop, _, _):
        request = make_request(3, request_id="again")
        async with aclosing(loop.submit(request)) as stream:
            await soon(read(stream))
        assert len(token_ids(await soon(read(loop.submit(request))))) == 4


async def test_abort_ends_the_stream_with_abort() -> None:
    async with engine_loop(num_blocks=ENDLESS) as (loop, _, _):
        request = make_request(3, max_tokens=10**6)
        stream = loop.submit(request)
        await soon(stream.__anext__())
        loop.abort("somebody else")
        loop.abort(request.request_id)
        outputs = await soon(read(stream))
        assert outputs[-1].finish_reason is FinishReason.ABORT
        assert idle(loop)
        loop.abort(request.request_id)


async def test_a_step_wakes_the_event_loop_once() -> None:
    async with engine_loop() as (loop, runner, gate):
        gate.close()
        blocker = loop.submit(make_request(1, max_tokens=1))
        await asyncio.to_thread(gate.entered.acquire)
        streams = [loop.submit(make_request(1, max_tokens=2)) for _ in range(4)]
        wakeups: list[int] = []
        deliver = loop._deliver

        def counting(outputs: list[RequestOutput]) -> None:
            wakeups.append(len(outputs))
            deliver(outputs)

        loop._deliver = counting  # type: ignore[method-assign]
        gate.open()
        await soon(asyncio.gather(*[read(stream) for stream in [blocker, *streams]]))
        assert wakeups == [1, 4, 4]
        assert len(runner.steps) == 3


async def test_what_can_never_fit_is_refused_by_submit_itself() -> None:
    async with engine_loop(num_blocks=2) as (loop, _, _):
        with pytest.raises(RequestTooLarge, match="30 tokens"):
            loop.submit(make_request(30))
        assert len(token_ids(await soon(read(loop.submit(make_request(3)))))) == 4


async def test_a_request_id_in_use_is_a_mistake_of_the_program() -> None:
    async with engine_loop(num_blocks=ENDLESS) as (loop, _, _):
        stream = loop.submit(make_request(3, max_tokens=10**6, request_id="same"))
        with pytest.raises(AssertionError, match="in use"):
            loop.submit(make_request(3, request_id="same"))
        assert (await soon(stream.__anext__())).finish_reason is None
        await stream.aclose()
        with pytest.raises(AssertionError, match="in use"):
            loop.submit(make_request(3, request_id="same"))
        await until(lambda: not loop._mailboxes)
        assert len(token_ids(await soon(read(loop.submit(make_request(3, request_id="same")))))) == 4


async def test_a_stream_that_ended_does_not_abort_the_next_of_its_id() -> None:
    async with engine_loop() as (loop, _, _):
        first = loop.submit(make_request(3, request_id="same"))
        await until(lambda: not loop._mailboxes)
        second = loop.submit(make_request(3, request_id="same"))
        await first.aclose()
        assert (await soon(read(second)))[-1].finish_reason is FinishReason.LENGTH


async def test_a_step_that_raises_ends_its_requests_only() -> None:
    async with engine_loop() as (loop, runner, _):
        runner.raise_next = RuntimeError("told to")
        (output,) = await soon(read(loop.submit(make_request(3))))
        assert output.finish_reason is FinishReason.ERROR
        assert loop.dead is None
        assert len(token_ids(await soon(read(loop.submit(make_request(3)))))) == 4


async def test_death_answers_everybody_and_takes_nobody() -> None:
    async with engine_loop(max_num_seqs=1) as (loop, runner, _):

        def break_down() -> None:
            runner.raise_next = RuntimeError("no device")

        runner.before = break_down
        answers = await soon(asyncio.gather(*[read(loop.submit(make_request(3))) for _ in range(5)]))
        assert [[output.finish_reason for output in outputs] for outputs in answers] == [[FinishReason.ERROR]] * 5
        assert loop.dead is not None
        assert "no device" in loop.dead
        assert idle(loop)
        with pytest.raises(EngineDead, match="no device"):
            loop.submit(make_request(3))


async def test_a_bug_in_the_engine_is_loud(caplog: pytest.LogCaptureFixture) -> None:
    engine, runner = make_engine()
    gate = Gate(runner)
    loop = EngineLoop(engine)
    gate.close()
    streams = [loop.submit(make_request(3, max_tokens=1))]
    await asyncio.to_thread(gate.entered.acquire)
    streams.append(loop.submit(make_request(3)))  # still on its way in when the thread ends
    engine.kv_cache._pool._free.pop()
    loop.abort(streams[1]._request_id)
    gate.open()
    first, second = await soon(asyncio.gather(*map(read, streams)))
    if first[-1].finish_reason is FinishReason.ERROR:
        assert second[-1].finish_reason is FinishReason.ERROR
    assert loop.dead is not None
    assert KVCacheCorrupted.__name__ in loop.dead
    assert "the engine died" in caplog.text
    await soon(loop.stop())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_what_would_end_a_program_ends_the_engine_as_loudly(error: BaseException) -> None:
    class Ending(Policy):
        def victim(self, running: object, newcomer: Sequence | None) -> Sequence | None:
            raise error

    engine, _ = make_engine(num_blocks=ENDLESS, max_num_seqs=1)
    engine.scheduler.configure(engine.config, Ending(engine.config))
    loop = EngineLoop(engine)
    streams = [loop.submit(make_request(3, max_tokens=10**6)), loop.submit(make_request(3))]
    for outputs in await soon(asyncio.gather(*map(read, streams))):
        assert outputs[-1].finish_reason is FinishReason.ERROR
    assert type(error).__name__ in str(loop.dead)
    await soon(loop.stop())


async def test_stop_while_running_ends_every_stream() -> None:
    engine, _ = make_engine(num_blocks=ENDLESS, max_num_seqs=1)
    loop = EngineLoop(engine)
    running, waiting = loop.submit(make_request(3, max_tokens=10**6)), loop.submit(make_request(3))
    await soon(running.__anext__())
    await soon(loop.stop())
    for stream in (running, waiting):
        assert (await soon(read(stream)))[-1].finish_reason is FinishReason.ABORT
    assert idle(loop)
    assert engine.kv_cache.num_held == 0
    assert loop.dead is None
    with pytest.raises(EngineDead, match="stopped"):
        loop.submit(make_request(3))
    await soon(loop.stop())


async def test_an_idle_engine_sleeps() -> None:
    async with engine_loop() as (loop, runner, _):
        await soon(read(loop.submit(make_request(3))))
        turns = 0
        turn = loop._turn

        def counting() -> bool:
            nonlocal turns
            turns += 1
            return turn()

        loop._turn = counting  # type: ignore[method-assign]
        loop.abort("nobody")
        await until(lambda: loop._commands.empty())
        await asyncio.sleep(0.05)
        assert turns <= 2
        assert len(runner.steps) == 4


async def test_stalled_for_grows_only_while_work_waits_and_nothing_moves() -> None:
    now = 100.0
    engine, runner = make_engine(clock=lambda: now)
    gate = Gate(runner)
    loop = EngineLoop(engine, clock=lambda: now)
    now = 200.0
    assert loop.stalled_for() == 0.0
    gate.close()
    stream = loop.submit(make_request(3))
    assert loop.stalled_for() == 0.0, "the time before the work came does not count"
    now = 207.0
    assert loop.stalled_for() == 7.0
    await stream.aclose()
    assert loop.stalled_for() == 7.0, "nobody listens any more, and it is stuck all the same"
    gate.open()
    await until(lambda: not loop._busy)
    now = 300.0
    assert loop.stalled_for() == 0.0
    assert idle(loop)
    await soon(loop.stop())


def test_an_event_loop_that_closed_does_not_hurt_the_next() -> None:
    engine, _ = make_engine(num_blocks=ENDLESS)
    loop = EngineLoop(engine)

    async def leave() -> None:
        stream = loop.submit(make_request(3, max_tokens=10**6))
        await soon(stream.__anext__())

    async def come() -> None:
        assert len(token_ids(await soon(read(loop.submit(make_request(3)))))) == 4
        await soon(loop.stop())

    asyncio.run(leave())
    asyncio.run(come())


async def test_a_stream_of_several_is_over_when_each_has_ended() -> None:
    async with engine_loop(num_blocks=100) as (loop, _, _):
        request = make_request(9, max_tokens=5, sampling={"n": 3})
        outputs = await soon(read(loop.submit(request)))
        for index in range(3):
            mine = [output for output in outputs if output.index == index]
            assert token_ids(mine) == answer(request.prompt_token_ids, 5, index)
            assert mine[-1].finish_reason is FinishReason.LENGTH
        assert not loop._mailboxes
        assert idle(loop)


async def test_one_of_several_may_be_aborted() -> None:
    async with engine_loop(num_blocks=100) as (loop, _, gate):
        gate.close()
        request = make_request(9, max_tokens=5, sampling={"n": 3})
        stream = loop.submit(request)
        loop.abort(request.request_id, 1)
        loop.abort(request.request_id, 7)
        gate.open()
        outputs = await soon(read(stream))
        ends = {output.index: output.finish_reason for output in outputs if output.finish_reason}
        assert ends == {0: FinishReason.LENGTH, 1: FinishReason.ABORT, 2: FinishReason.LENGTH}


async def test_who_hangs_up_on_several_frees_all_of_them() -> None:
    async with engine_loop(num_blocks=ENDLESS) as (loop, _, _):
        stream = loop.submit(make_request(9, max_tokens=10**6, sampling={"n": 3}))
        await soon(stream.__anext__())
        await stream.aclose()
        await until(lambda: idle(loop))
        await until(lambda: not loop._mailboxes)


async def test_a_stop_ends_each_of_several() -> None:
    engine, _ = make_engine(num_blocks=ENDLESS)
    loop = EngineLoop(engine)
    stream = loop.submit(make_request(9, max_tokens=10**6, sampling={"n": 3}))
    await soon(stream.__anext__())
    await soon(loop.stop())
    ends = [output for output in await soon(read(stream)) if output.finish_reason is not None]
    assert sorted((output.index, output.finish_reason) for output in ends) == [
        (i, FinishReason.ABORT) for i in range(3)
    ]
