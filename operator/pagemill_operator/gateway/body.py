"""Reading a request's body whole, within limits of its size, of patience and of the process's memory.

Whole, because a request may have to wait, to be asked of another replica, or be routed by how its prompt begins. Used by `proxy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from pagemill_operator.gateway.errors import BodyTimeout, BodyTooLarge, Unavailable

MAX_BODY_BYTES = 16 << 20  # as the server's own limit
_PART = 1 << 16


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """From the command's flags."""

    size: int = MAX_BODY_BYTES  # bytes of one
    memory: int = 256 << 20  # bytes of all that are in the process at once
    stall: float = 60.0  # seconds without any of it arriving


class Bodies:
    """Counts what all bodies of the process take."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.taken = 0  # bytes

    async def read(self, request: web.BaseRequest) -> Body:
        """Raises BodyTimeout, BodyTooLarge, Unavailable. To be released by the caller."""
        body = Body(self)
        try:
            await self._fill(body, request)
        except BaseException:
            body.release()
            raise
        return body

    async def _fill(self, body: Body, request: web.BaseRequest) -> None:
        if not request.body_exists:
            return
        if (request.content_length or 0) > self.limits.size:
            raise self._too_large()
        await ask_for_the_body(request)
        while part := await self._part(request):
            if len(body.data) + len(part) > self.limits.size:
                raise self._too_large()
            if self.taken + len(part) > self.limits.memory:
                raise Unavailable("Too much is being sent at once.", "too_much_at_once")
            self.taken += len(part)
            body.data += part

    async def _part(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self.limits.stall):
                return await request.content.readany()
        except TimeoutError:
            seconds = f"{self.limits.stall:g}"
            raise BodyTimeout(f"Nothing of the body arrived for {seconds} seconds.", "body_timeout") from None

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self.limits.size} bytes.", "body_too_large")


class Body:
    """One of them; empty once it is released."""

    def __init__(self, bodies: Bodies) -> None:
        self.data = bytearray()
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self.data)

    async def parts(self) -> AsyncIterator[bytes]:
        """Piece by piece: a large one at a time would hold up every other stream."""
        data = self.data  # an answer may begin, and the body be released, before all is sent
        for begin in range(0, len(data), _PART):
            yield bytes(data[begin : begin + _PART])

    def release(self) -> None:
        """It will not be sent again."""
        self._bodies.taken -= len(self.data)
        self.data = bytearray()


async def ask_for_the_body(request: web.BaseRequest) -> None:
    """A client that sends a large body may wait for this word (curl: a second) before it begins."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is not part of the answer
