"""Runs a reply's requests on the engine: one stream of outputs a prompt, and the pieces of all choices merged as they come.

Leaving a stream early, in any way, aborts its request and frees its blocks. Counts and times what passes. Used by
`api/generation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pagemill_server.api.choice import Choice, Piece
from pagemill_server.api.record import Record
from pagemill_server.api.reply import Reply
from pagemill_server.api.service import Loaded, Service
from pagemill_server.engine.errors import EngineDead, RequestRefused
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput
from pagemill_server.errors import BadRequest, EngineFailed
from pagemill_server.request_timer import RequestTimer

Pieces = AsyncGenerator[tuple[int, Piece], None]


async def run_request(
    service: Service, loaded: Loaded, request: AddRequest, choices: Sequence[Choice], record: Record, first: int = 0
) -> Pieces:
    """(sequence index, piece) of one prompt's choices, which `record` counts from `first` on. Raises BadRequest, EngineFailed,
    Unavailable."""
    timer = RequestTimer(service.metrics, request, times=record.times)
    last: tuple[int, Piece] | None = None
    try:
        async with aclosing(loaded.engine.submit(request)) as outputs:
            async for output in outputs:
                index, choice = output.index, choices[output.index]
                timer.output(output)
                if choice.over:  # a stop string ended it: the engine's own last word on it
                    continue
                check_ended(service, timer, output)
                piece = choice.feed(output)
                record.piece(first + index, piece.text, piece.finish_reason)
                if piece.finish_reason is not None:
                    timer.finish(index, piece.finish_reason)
                    if all(one.over for one in choices):
                        last = index, piece
                        break
                    if output.finish_reason is None:
                        loaded.engine.abort(request.request_id, index)
                if output.tokens or piece.finish_reason is not None:
                    yield index, piece
    except RequestRefused as refusal:
        raise BadRequest(str(refusal)) from None
    except EngineDead as dead:
        raise service.refused_by(dead) from None
    finally:
        timer.abandon()
    # Given out only now: who sees the end of an answer finds its request counted and, after a stop string, aborted.
    if last is not None:
        yield last


def check_ended(service: Service, timer: RequestTimer, output: RequestOutput) -> None:
    """Raises what a sequence that ended without an answer of its own means for the whole request."""
    if output.finish_reason is FinishReason.ERROR:
        timer.finish(output.index, FinishReason.ERROR)
        raise EngineFailed(output.error or "The engine could not finish this request.")
    if output.finish_reason is FinishReason.ABORT:
        raise service.cut_short()


async def run_choices(service: Service, loaded: Loaded, reply: Reply) -> Pieces:
    """(index, piece) of all choices in the order they come. The first failure ends them all."""
    requests = reply.job.requests
    n = requests[0].sampling.n
    streams = [
        run_request(service, loaded, request, reply.choices_of(place), reply.record, place * n)
        for place, request in enumerate(requests)
    ]
    if len(streams) == 1:
        async with aclosing(streams[0]) as pieces:
            async for index, piece in pieces:
                yield index, piece
        return
    arrivals: asyncio.Queue[tuple[int, Piece] | BaseException] = asyncio.Queue()
    first, tasks = 0, []
    for stream, request in zip(streams, requests, strict=True):
        tasks.append(asyncio.ensure_future(_pump(first, stream, arrivals)))
        first += request.sampling.n
    try:
        unfinished = first
        while unfinished:
            arrived = await arrivals.get()
            if isinstance(arrived, BaseException):
                raise arrived
            unfinished -= arrived[1].finish_reason is not None
            yield arrived
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(first: int, stream: Pieces, arrivals: asyncio.Queue[tuple[int, Piece] | BaseException]) -> None:
    async with aclosing(stream) as pieces:
        try:
            async for index, piece in pieces:
                arrivals.put_nowait((first + index, piece))
        except Exception as error:  # noqa: BLE001  it is raised where the pieces are read
            arrivals.put_nowait(error)
