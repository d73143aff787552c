"""The endpoints that generate: prepare (text thread) → run → answer whole or as events.

Each says how a body becomes a job and how pieces become its JSON; everything else is here once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from pagemill_server.api.access_log import log_bug
from pagemill_server.api.body import parse_object
from pagemill_server.api.choice import Piece
from pagemill_server.api.endpoint import Call, Endpoint
from pagemill_server.api.generate import run_choices
from pagemill_server.api.prepare import Job, Origin
from pagemill_server.api.record import Record
from pagemill_server.api.reply import Reply
from pagemill_server.api.service import Loaded
from pagemill_server.api.visit import Outcome
from pagemill_server.errors import ApiError, EngineFailed

Chunk = dict[str, Any]


class Generation(Endpoint):
    """One endpoint; see the module's docstring."""

    @abstractmethod
    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        """Check, render, tokenise. In a text thread; raises ApiError."""

    def reply_to(self, loaded: Loaded, job: Job, record: Record) -> Reply:
        """What holds the answer while it is made."""
        return Reply(loaded.generating().vocabulary, job, record)

    @abstractmethod
    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        """The response; `answers` has one piece a choice, all of it joined. In a text thread."""

    def beginning(self, reply: Reply) -> Sequence[Chunk]:
        """Chunks before those of any choice."""
        return ()

    @abstractmethod
    def opening(self, reply: Reply, index: int) -> Sequence[Chunk]:
        """Chunks of a choice before its first piece."""

    @abstractmethod
    def chunks(self, reply: Reply, index: int, piece: Piece) -> Sequence[Chunk]:
        """The chunks of one piece."""

    @abstractmethod
    def closing(self, reply: Reply) -> Sequence[Chunk]:
        """Chunks after the last piece of all."""

    def failed(self, reply: Reply, error: ApiError) -> Sequence[Chunk]:
        """What is said in the middle of a stream that can't go on."""
        return [error.body()]

    def event(self, chunk: Chunk) -> bytes:
        """A chunk as a server-sent event."""
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    last_event = b"data: [DONE]\n\n"

    async def answer(self, loaded: Loaded, call: Call) -> None:
        job = await self.service.in_text_thread(lambda: self.prepare(loaded, parse_object(call.body), call.origin))
        prompt_tokens = sum(len(request.prompt_token_ids) for request in job.requests)
        call.log(id=job.id, model=job.model, stream=job.stream, prompt_tokens=prompt_tokens)
        reply = self.reply_to(loaded, job, call.record)
        self.service.check_queue(loaded, len(reply.choices), prompt_tokens)
        call.visit.reserve(prompt_tokens, lambda: reply.completion_tokens)
        try:
            if job.stream:
                await self._stream(loaded, reply, call)
            else:
                await call.respond(await self._collect(loaded, reply))
        finally:
            call.log(cached_tokens=reply.cached_tokens, completion_tokens=reply.completion_tokens)

    async def _collect(self, loaded: Loaded, reply: Reply) -> bytes:
        pieces: list[list[Piece]] = [[] for _ in reply.choices]
        async with aclosing(run_choices(self.service, loaded, reply)) as run:
            async for index, piece in run:
                pieces[index].append(piece)
        answers = [
            Piece("".join(p.text for p in parts), tuple(t for p in parts for t in p.tokens), parts[-1].finish_reason)
            for parts in pieces
        ]
        # With log-probabilities an answer of some thousand tokens is megabytes of JSON.
        return await self.service.in_text_thread(lambda: orjson.dumps(self.whole(reply, answers)))

    async def _stream(self, loaded: Loaded, reply: Reply, call: Call) -> None:
        """Headers go out with the first token: what fails before it is still an ordinary error response."""
        async with aclosing(self._chunks(loaded, reply)) as chunks:
            first = await anext(chunks)
            await call.begin_events()
            await call.send_part(self.event(first))
            try:
                async for chunk in chunks:
                    await call.send_part(self.event(chunk))
            except ApiError as error:
                await self._fail(reply, error, call)
            except Exception as bug:  # noqa: BLE001  it is logged
                log_bug(bug, call.record)
                await self._fail(reply, EngineFailed("The server failed in the middle of the answer."), call)
            if self.last_event:
                await call.send_part(self.last_event)
            await call.end()

    async def _fail(self, reply: Reply, error: ApiError, call: Call) -> None:
        call.record.failure = error.code or error.type
        call.visit.outcome = Outcome.FAILED
        for chunk in self.failed(reply, error):
            await call.send_part(self.event(chunk))

    async def _chunks(self, loaded: Loaded, reply: Reply) -> AsyncGenerator[Chunk, None]:
        opened: set[int] = set()
        async with aclosing(run_choices(self.service, loaded, reply)) as run:
            async for index, piece in run:
                for chunk in self.beginning(reply) if not opened else ():
                    yield chunk
                for chunk in self.opening(reply, index) if index not in opened else ():
                    yield chunk
                opened.add(index)
                for chunk in self.chunks(reply, index, piece):
                    yield chunk
        for chunk in self.closing(reply):
            yield chunk
