"""The event loop's side of the boundary, without an engine: what a step brings for many streams is handed over bit by bit."""

import asyncio
import itertools

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.front import AT_A_TIME, Command, EngineFront, MailboxStream
from pagemill_server.engine.request import (
    AddRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    SampledToken,
    SamplingParams,
)
from pagemill_server.engine.snapshot import Snapshot


class Front(EngineFront):
    """Its engine takes everything and does nothing."""

    dead = None
    _unread = False
    _over = False

    def __init__(self) -> None:
        snapshot = Snapshot.__new__(Snapshot)  # never read here
        super().__init__(EngineStats(0, 0, 0.0, 1, 0, 0, 0, 0, 0, 0, 0.0), SchedulerConfig(), snapshot)

    def _check(self, request: AddRequest) -> None:
        pass

    def _put(self, command: Command) -> None:
        pass

    async def stop(self) -> None:
        pass

    def ask(self, number: int) -> MailboxStream:
        return self.submit(AddRequest(f"r{number}", (1,), SamplingParams(), arrival=0.0))


def outputs(count: int, token: int, reason: FinishReason | None = None) -> list[RequestOutput]:
    return [RequestOutput(f"r{number}", (SampledToken(token),), reason) for number in range(count)]


async def test_others_have_their_turn_between_the_streams() -> None:
    front, seen, turns = Front(), 0, []
    streams = [front.ask(number) for number in range(5 * AT_A_TIME)]

    async def read(stream: MailboxStream) -> None:
        nonlocal seen
        async for _ in stream:
            seen += 1

    readers = [asyncio.create_task(read(stream)) for stream in streams]
    await asyncio.sleep(0)
    front._deliver(outputs(len(streams), 7, FinishReason.LENGTH))
    while seen < len(streams):
        turns.append(seen)
        await asyncio.sleep(0)
    assert len(turns) >= 5
    assert max(after - before for before, after in itertools.pairwise(turns)) <= AT_A_TIME
    await asyncio.gather(*readers)
    assert not front._mailboxes


async def test_two_steps_come_in_their_order_and_each_once() -> None:
    front, count = Front(), 3 * AT_A_TIME
    streams = [front.ask(number) for number in range(count)]
    front._deliver(outputs(count, 1))
    front._deliver(outputs(count, 2, FinishReason.LENGTH))
    got = [[output.tokens[0].token_id async for output in stream] for stream in streams]
    assert got == [[1, 2]] * count


async def test_what_came_before_the_end_comes_before_it() -> None:
    front, count = Front(), 3 * AT_A_TIME
    streams = [front.ask(number) for number in range(count)]
    front._deliver(outputs(count, 1))
    front._deliver_end("it failed")
    for stream in streams:
        first, last = [output async for output in stream]
        assert (first.tokens, first.finish_reason) == ((SampledToken(1),), None)
        assert (last.finish_reason, last.error) == (FinishReason.ERROR, "it failed")
