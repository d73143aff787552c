"""Reading a request's body: limits of size and of patience while it arrives, strict JSON, and the news that the client has gone.

At the ASGI level, because only there is every disconnect seen, streaming or not. Used by `api/endpoint`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from starlette.types import Message, Receive, Scope

from pagemill_server.errors import BadRequest, BodyTooLarge, RequestTimeout, Unavailable

T = TypeVar("T")

_DROPPED = 4  # times the limit
_CLOSE = {"connection": "close"}  # the rest of the body is never read, so the connection can't be used again


class ClientGone(Exception):
    """The client hung up: nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a body may take. Made by `service`."""

    size: int  # bytes
    stall: float  # seconds without any of it arriving: a client that stalls would hold up a drain
    ending: asyncio.Event  # set when the server ends what still runs


async def read_body(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    """All of the body. Raises BodyTooLarge, RequestTimeout, Unavailable, ClientGone.

    What is too large is read on for a while and dropped: a client that is cut while it sends gets no answer but a reset, which a
    proxy passes on as 502.
    """
    length = _announced(scope)
    most = _DROPPED * limits.size
    if length > most or (length > limits.size and _waits(scope)):
        raise _too_large(limits.size)
    body, size = bytearray(), 0
    while True:
        message = await _next_part(receive, limits)
        if message["type"] == "http.disconnect":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        fits = max(size, length) <= limits.size
        if not fits and (size > most or not more):
            raise _too_large(limits.size)
        if fits:
            body += part
        if not more:
            return bytes(body)


def _announced(scope: Scope) -> int:
    """Bytes, by content-length; 0 where it is not said."""
    return max((int(v[:20]) for name, v in scope["headers"] if name == b"content-length" and v.isdigit()), default=0)


def _waits(scope: Scope) -> bool:
    """The client sends its body only when it is asked to."""
    return any(name == b"expect" for name, _ in scope["headers"])


async def _next_part(receive: Receive, limits: BodyLimits) -> Message:
    arrival, end = asyncio.ensure_future(receive()), asyncio.ensure_future(limits.ending.wait())
    try:
        await asyncio.wait({arrival, end}, timeout=limits.stall, return_when=asyncio.FIRST_COMPLETED)
        if arrival.done():
            return arrival.result()
    finally:
        arrival.cancel()
        end.cancel()
        await asyncio.gather(arrival, end, return_exceptions=True)
    if limits.ending.is_set():
        raise Unavailable("The server is shutting down.", code="shutting_down", headers=_CLOSE)
    raise RequestTimeout(
        f"Nothing of the body arrived for {limits.stall:g} seconds.", code="body_timeout", headers=_CLOSE
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """Strict JSON: no NaN or Infinity, no lone surrogates, a bounded depth. Raises BadRequest."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    return parsed


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, its blocks freed, when the client hangs up first (then raises ClientGone).

    To be called when the body has been read. Polling `is_disconnected` would miss the disconnect behind a middleware, and
    frameworks cancel only their own streaming responses.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.", code="body_too_large", headers=_CLOSE)
