"""One request to one replica: its headers, its connection, and the answer on its way back, piece by piece.

Each request has a connection of its own: on one that was kept a replica that ends could not be told from one that has already
begun to compute. What could not be sent at all is `Unreachable`, which is the only thing besides a replica's own 503 that is
tried again. Used by `proxy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from pagemill_operator.gateway.body import Body
from pagemill_operator.gateway.errors import ReplicaFailed

CONNECT_SECONDS = 2.0  # a pod that has gone with its node answers nothing at all
READ_SECONDS = 60.0  # in which a client takes what waits for it; else its replica would count as busy for ever
MOST_HEADER_BYTES = 64 << 10
REQUEST_ID = "X-Request-Id"

_HOP_BY_HOP = frozenset(
    (
        "connection",
        "expect",  # answered here
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # a generation takes as long as it takes


class Unreachable(Exception):
    """Nothing of the request has been sent."""


class Upstream:
    """`async with`: all connections to replicas."""

    async def __aenter__(self) -> Upstream:
        self._session = aiohttp.ClientSession(
            timeout=_NO_TIMEOUT,
            auto_decompress=False,  # a body goes on as it came: unpacked, it would no longer be what its headers say
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @contextlib.asynccontextmanager
    async def asked(
        self, request: web.BaseRequest, body: Body, address: str, request_id: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of the replica's answer. Raises Unreachable, ReplicaFailed."""
        url = URL(f"http://{address}{request.raw_path}", encoded=True)  # as it came, not as yarl would quote it
        try:
            answer = await self._session.request(
                request.method,
                url,
                headers=_headers(request, body, request_id),
                data=body.parts() if len(body) else None,
                allow_redirects=False,
                skip_auto_headers=_AUTO_HEADERS,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from error
        except aiohttp.ClientError as error:
            said = f"The replica ended before it answered: {error or type(error).__name__}"
            raise ReplicaFailed(said, "replica_failed") from error
        async with answer:
            yield answer


async def relay(answer: aiohttp.ClientResponse, request: web.BaseRequest, response: web.StreamResponse) -> bool:
    """All of the answer's body; False where it broke off, and the client's connection with it.

    What is half sent can't be called back: cutting the connection is the only way left to say so.
    """
    while True:
        try:
            part = await answer.content.readany()
        except aiohttp.ClientError:
            _cut(request)
            return False
        if not part:
            await response.write_eof()
            return True
        try:
            async with asyncio.timeout(READ_SECONDS):
                await response.write(part)
        except TimeoutError:
            _cut(request)
            raise ConnectionResetError("the client reads nothing") from None


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def copied(answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """A response with the answer's status and headers."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, value in answer.headers.items():
        if name.lower() not in _HOP_BY_HOP:
            response.headers.add(name, value)
    return response


def _headers(request: web.BaseRequest, body: Body, request_id: str) -> CIMultiDict[str]:
    named = request.headers.get("Connection", "").lower()
    dropped = _HOP_BY_HOP | {name.strip() for name in named.split(",")} | {"content-length", "x-forwarded-for"}
    headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in dropped)
    # Clients' word and, last, what is certain: who connected to this gateway.
    came_by = [*request.headers.getall("X-Forwarded-For", ()), request.remote or "unknown"]
    headers["X-Forwarded-For"] = ", ".join(came_by)
    headers[REQUEST_ID] = request_id
    if request.body_exists or request.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = str(len(body))
    return headers


def _socket(info: tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]) -> socket.socket:
    """With probes of TCP's own, half a minute of silence: a node that loses its power says no goodbye to its streams."""
    made = socket.socket(info[0], info[1], info[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
