"""Runs a job's requests on the engine: one stream of pieces a choice, or all of them merged as they come.

Leaving a stream early, in any way, aborts its request and frees its blocks. Counts and times what passes. Used by
`api/inference`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pagemill_server.api.choice import Choice, Piece
from pagemill_server.api.service import Loaded, Service
from pagemill_server.engine.errors import EngineDead, RequestRefused
from pagemill_server.engine.request import AddRequest, FinishReason
from pagemill_server.errors import BadRequest, EngineFailed, Unavailable


async def run_choice(
    service: Service, loaded: Loaded, request: AddRequest, choice: Choice
) -> AsyncGenerator[Piece, None]:
    """The pieces of one choice. Raises BadRequest, EngineFailed, Unavailable."""
    timer = service.metrics.follow(request)
    reason = FinishReason.ABORT
    last: Piece | None = None
    try:
        async with aclosing(loaded.engine.submit(request)) as outputs:
            async for output in outputs:
                timer.output(output)
                if output.finish_reason is FinishReason.ERROR:
                    reason = FinishReason.ERROR
                    raise EngineFailed(output.error or "The engine could not finish this request.")
                if output.finish_reason is FinishReason.ABORT:
                    raise service.cut_short()
                piece = choice.feed(output)
                if piece.finish_reason is not None:
                    last, reason = piece, piece.finish_reason
                    break
                yield piece
    except RequestRefused as refusal:
        raise BadRequest(str(refusal)) from None
    except EngineDead as dead:
        raise Unavailable(str(dead), code="engine_dead") from None
    finally:
        timer.finish(reason)
    # Given out only now: who sees the end of an answer finds its request counted and, after a stop string, aborted.
    if last is not None:
        yield last


async def run_choices(
    service: Service, loaded: Loaded, requests: Sequence[AddRequest], choices: Sequence[Choice]
) -> AsyncGenerator[tuple[int, Piece], None]:
    """(index, piece) of all choices in the order they come. The first failure ends them all."""
    streams = [run_choice(service, loaded, request, choice) for request, choice in zip(requests, choices, strict=True)]
    if len(streams) == 1:
        async with aclosing(streams[0]) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    arrivals: asyncio.Queue[tuple[int, Piece | BaseException]] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pump(index, stream, arrivals)) for index, stream in enumerate(streams)]
    try:
        unfinished = len(streams)
        while unfinished:
            index, arrived = await arrivals.get()
            if isinstance(arrived, BaseException):
                raise arrived
            unfinished -= arrived.finish_reason is not None
            yield index, arrived
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int, stream: AsyncGenerator[Piece, None], arrivals: asyncio.Queue[tuple[int, Piece | BaseException]]
) -> None:
    async with aclosing(stream) as pieces:
        try:
            async for piece in pieces:
                arrivals.put_nowait((index, piece))
        except Exception as error:  # noqa: BLE001  it is raised where the pieces are read
            arrivals.put_nowait((index, error))
