"""The course of a request that asks the model: admit → read → prepare (text thread) → run → answer whole or as events.

The two endpoints say how a body becomes a job and how pieces become JSON; everything else is here once. An ASGI application of
its own, so that a disconnect is seen at any moment, streaming or not.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagemill_server.api.auth import CLIENT
from pagemill_server.api.body import ClientGone, parse_object, read_body, unless_gone
from pagemill_server.api.choice import Piece
from pagemill_server.api.generate import run_choices
from pagemill_server.api.prepare import Job, Origin
from pagemill_server.api.reply import Reply
from pagemill_server.api.service import Loaded, Service
from pagemill_server.errors import ApiError, EngineFailed

logger = logging.getLogger(__name__)

CLIENT_HEADER = b"x-client-id"
MAX_CLIENT_CHARACTERS = 64
LOG_FIELDS = "pagemill.log"  # in the ASGI scope: what the access log says about the request beside the usual


class Inference(ABC):
    """One endpoint; see the module's docstring."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        """Check, render, tokenise. In a text thread; raises ApiError."""

    @abstractmethod
    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        """The response without `usage`; `answers` has one piece a choice, all of it joined."""

    @abstractmethod
    def opening(self, reply: Reply, index: int) -> list[dict[str, Any]]:
        """Chunks of a choice before its first text."""

    @abstractmethod
    def chunks(self, reply: Reply, index: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of one piece."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Origin(time.monotonic(), _client(scope))
        loaded = self.service.admit()
        self.service.check_queue(loaded, 1, 0)  # before its body is read
        with self.service.counting():
            try:
                body = await read_body(scope, receive, self.service.body_limits)
                await unless_gone(receive, self._answer(loaded, body, origin, scope, receive, send))
            except ClientGone:
                scope[LOG_FIELDS] = scope.get(LOG_FIELDS, {}) | {"outcome": "client_gone"}

    async def _answer(
        self, loaded: Loaded, body: bytes, origin: Origin, scope: Scope, receive: Receive, send: Send
    ) -> None:
        job = await self.service.in_text_thread(lambda: self.prepare(loaded, parse_object(body), origin))
        prompt_tokens = sum(len(request.prompt_token_ids) for request in job.requests)
        scope[LOG_FIELDS] = {"id": job.id, "prompt_tokens": prompt_tokens}
        reply = Reply(loaded.vocabulary, job)
        self.service.check_queue(loaded, len(reply.choices), prompt_tokens)
        if job.stream:
            await self._stream(loaded, reply, send)
        else:
            response = await self._collect(loaded, reply)
            await Response(response, media_type="application/json")(scope, receive, send)
        scope[LOG_FIELDS]["completion_tokens"] = sum(choice.num_tokens for choice in reply.choices)

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
        return await self.service.in_text_thread(
            lambda: orjson.dumps(self.whole(reply, answers) | {"usage": reply.usage()})
        )

    async def _stream(self, loaded: Loaded, reply: Reply, send: Send) -> None:
        """Headers go out with the first token: what fails before it is still an ordinary error response."""
        async with aclosing(self._events(loaded, reply)) as events:
            first = await anext(events)
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _send_event(send, first)
            try:
                async for event in events:
                    await _send_event(send, event)
            except ApiError as error:
                await _send_event(send, orjson.dumps(error.body()))
            except Exception:
                logger.exception("a stream failed: id=%s", reply.job.id)
                await _send_event(
                    send, orjson.dumps(EngineFailed("The server failed in the middle of the answer.").body())
                )
            await _send_event(send, b"[DONE]")
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, loaded: Loaded, reply: Reply) -> AsyncGenerator[bytes, None]:
        job = reply.job
        rest: dict[str, Any] = {"usage": None} if job.include_usage else {}
        opened: set[int] = set()
        async with aclosing(run_choices(self.service, loaded, reply)) as run:
            async for index, piece in run:
                chunks = [] if index in opened else self.opening(reply, index)
                opened.add(index)
                for chunk in (*chunks, *self.chunks(reply, index, piece)):
                    yield orjson.dumps(chunk | rest)
        if job.include_usage:
            yield orjson.dumps(self.envelope(job) | {"choices": [], "usage": reply.usage()})

    @abstractmethod
    def envelope(self, job: Job) -> dict[str, Any]:
        """What every chunk of the response has beside `choices`."""


def _client(scope: Scope) -> str:
    """Who asks: the key's name, else what a gateway in front says."""
    if known := scope.get(CLIENT):
        return str(known)
    for name, value in scope["headers"]:
        if name == CLIENT_HEADER:
            return str(value.decode("latin-1")[:MAX_CLIENT_CHARACTERS].strip())
    return ""


async def _send_event(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
