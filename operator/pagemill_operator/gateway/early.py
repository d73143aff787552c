"""A stream that begins before there is anybody to answer it: comments of server-sent events while a request waits.

Without a sign of life proxies and clients give a waiting connection up. After that the status is sent, so what goes wrong later is
said by an event with OpenAI's error object, which official clients raise. Used by `proxy`.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from aiohttp import web

from pagemill_operator.gateway.answers import error_event
from pagemill_operator.gateway.errors import Refusal, ReplicaFailed
from pagemill_operator.gateway.upstream import REQUEST_ID, relay

COMMENT = b": waiting\n\n"
EVENTS = "text/event-stream"
_MOST_ERROR_BYTES = 64 << 10


class EarlyStream:
    """Begins with its first comment."""

    def __init__(self, request: web.BaseRequest, request_id: str, closes: bool) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None
        self._headers = {
            "Content-Type": f"{EVENTS}; charset=utf-8",
            "Cache-Control": "no-cache",
            REQUEST_ID: request_id,
        }
        self._closes = closes

    async def comment(self) -> None:
        """A sign of life."""
        if self.response is None:
            self.response = web.StreamResponse(headers=self._headers)
            if self._closes:
                self.response.force_close()
            await self.response.prepare(self._request)
        await self.response.write(COMMENT)

    async def continued(self, answer: aiohttp.ClientResponse) -> str:
        """The replica's events, or its error as one; the outcome."""
        assert self.response is not None
        if answer.status == 200 and answer.content_type == EVENTS:
            return "answered" if await relay(answer, self._request, self.response) else "cut"
        await self._end(await _error_of(answer))
        return "failed" if answer.status >= 500 else "answered"

    async def fail(self, refusal: Refusal) -> None:
        await self._end(refusal.body())

    async def _end(self, error: dict[str, Any]) -> None:
        assert self.response is not None
        await self.response.write(error_event(error))
        await self.response.write_eof()


async def _error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The replica's own words where they are OpenAI's error object."""
    try:
        said = json.loads(await answer.content.read(_MOST_ERROR_BYTES))
        if isinstance(said["error"], dict):
            return {"error": said["error"]}
    except (ValueError, TypeError, KeyError, aiohttp.ClientError):
        pass
    return ReplicaFailed(f"The replica answered with status {answer.status}.", "replica_failed").body()
