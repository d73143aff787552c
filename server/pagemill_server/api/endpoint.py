"""The course of every request that the model is needed for: admit → read → answer, for as long as the client is there.

An ASGI application of its own, so that a disconnect is seen at any moment, streaming or not. Endpoints say in `answer` what they
do with the body; `api/generation` is the one that generates.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagemill.keys import ApiKey
from pagemill_server.api.auth import CLIENT, KEY
from pagemill_server.api.body import ClientGone, read_body, unless_gone
from pagemill_server.api.prepare import Origin
from pagemill_server.api.record import CLIENT_GONE, Record, prompt_of, record_of
from pagemill_server.api.service import Loaded, Service
from pagemill_server.api.visit import Outcome, Visit

CLIENT_HEADER = b"x-client-id"
MAX_CLIENT_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request whose body has been read. Made by `Endpoint`, on the event loop."""

    scope: Scope
    receive: Receive
    send: Send
    body: bytes
    origin: Origin
    visit: Visit = field(default_factory=Visit)  # what it costs its key

    @property
    def record(self) -> Record:
        return record_of(self.scope)

    def log(self, **fields: Any) -> None:
        """More for the access log's line: numbers and ids, never a client's text."""
        self.record.fields.update(fields)

    async def respond(self, body: bytes) -> None:
        """A whole answer, JSON."""
        self.visit.leave()
        await Response(body, media_type="application/json")(self.scope, self.receive, self.send)

    async def begin_events(self) -> None:
        """The head of an event stream."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_part(self, part: bytes) -> None:
        await self.send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        self.visit.leave()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class Endpoint(ABC):
    """One route; see the module's docstring."""

    queues = True  # it needs the engine, and is refused where too much waits

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    async def answer(self, loaded: Loaded, call: Call) -> None:
        """Raises ApiError before the answer has begun; is cancelled when the client has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope.get(KEY)
        origin = self._origin(scope, key)
        with self.service.quotas.visit(key) as visit:  # this and what follows before its body is read
            loaded = self.service.admit()
            if self.queues:
                self.service.check_queue(loaded, 1, 0)
            with self.service.counting():
                try:
                    body = await read_body(scope, receive, self.service.body_limits)
                    await unless_gone(receive, self._answer(loaded, Call(scope, receive, send, body, origin, visit)))
                except ClientGone:
                    visit.outcome = Outcome.ABORTED
                    record_of(scope).failure = CLIENT_GONE

    def _origin(self, scope: Scope, key: ApiKey | None) -> Origin:
        arrival, client = time.monotonic(), _client(scope)
        if key is None:
            return Origin(arrival, client)
        return Origin(arrival, client, self.service.keys.salt(key), key.max_priority)

    async def _answer(self, loaded: Loaded, call: Call) -> None:
        if call.record.keeps_content:
            call.record.prompt = await self.service.in_text_thread(partial(prompt_of, call.body))
        await self.answer(loaded, call)


def _client(scope: Scope) -> str:
    """Who asks: the key's name, else what a gateway in front says."""
    if known := scope.get(CLIENT):
        return str(known)
    for name, value in scope["headers"]:
        if name == CLIENT_HEADER:
            return str(value.decode("latin-1")[:MAX_CLIENT_CHARACTERS].strip())
    return ""
