"""The Service of one machine: one front port that passes each HTTP request on to the ready replica with the least to do.

Owns the listening port and the count of running requests a replica. A request is passed on once, unless the replica could not be
reached at all; answers stream; a replica that leaves gets no new requests and finishes what it has. Called by `cluster`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import aiohttp
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict
from yarl import URL

from pagemill_operator.cluster.local.pod_status import LOCAL_ADDRESS

RETRY_AFTER_SECONDS = 2
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
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)  # a generation takes as long as it takes


class Front:
    """Open with `open`, close with `close`. `ready_ports` is asked for every request."""

    def __init__(self, port: int, name: str, ready_ports: Callable[[], Iterable[int]]) -> None:
        self.port = port
        self._name = name
        self._ready_ports = ready_ports
        self._running: Counter[int] = Counter()  # requests, by the replica's port

    async def open(self) -> None:
        """Listen on 127.0.0.1. Raises OSError when the port is taken."""
        self._session = aiohttp.ClientSession(
            timeout=_NO_TIMEOUT,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # A body goes on as it came: unpacked here, it would no longer be what its headers say.
        server = web.Server(self._serve, handler_cancellation=True, access_log=None, auto_decompress=False)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, LOCAL_ADDRESS, self.port).start()
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and cut what still runs."""
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):  # `*`, CONNECT's host, a whole URL: what a proxy is asked
            return _error(f"{request.raw_path[:200]} is not a path.", 400, "invalid_request_error", "invalid_http")
        tried: set[int] = set()
        while ports := [port for port in self._ready_ports() if port not in tried]:
            port = min(ports, key=lambda candidate: (self._running[candidate], candidate))
            self._running[port] += 1
            try:
                return await self._pass_on(request, port)
            except aiohttp.ClientConnectorError:
                tried.add(port)  # nothing of the request has been sent
            except aiohttp.ClientError as error:
                return _unavailable(f"the replica of {self._name} ended before it answered: {error}", status=502)
            finally:
                self._running[port] -= 1
        return _unavailable(f"no replica of {self._name} is ready")

    async def _pass_on(self, request: web.BaseRequest, port: int) -> web.StreamResponse:
        await _ask_for_the_body(request)
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP
        )
        headers["X-Forwarded-For"] = request.remote or ""
        url = URL(
            f"http://{LOCAL_ADDRESS}:{port}{request.raw_path}", encoded=True
        )  # as it came, not as yarl would quote it
        body = request.content if request.body_exists else None
        async with self._session.request(
            request.method, url, headers=headers, data=body, allow_redirects=False, skip_auto_headers=_AUTO_HEADERS
        ) as upstream:
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
            for name, value in upstream.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    response.headers.add(name, value)
            await response.prepare(request)
            try:
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientError:
                # The answer is half sent: cutting the connection is the only way left to say so.
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write_eof()
            return response


_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


async def _ask_for_the_body(request: web.BaseRequest) -> None:
    """A client that sends a large body may wait for this word (curl: a second) before it begins."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is not part of the answer


def _unavailable(message: str, status: int = 503) -> web.Response:
    """With when to come back."""
    response = _error(message, status, "service_unavailable", "no_ready_replica")
    response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _error(message: str, status: int, kind: str, code: str) -> web.Response:
    """OpenAI's error object."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status)
