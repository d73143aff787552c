"""A listening port and the deployment behind it: what came in by it, and its slow closing. Made by `gateway`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from pagemill_operator.gateway.http_server import HttpServer
from pagemill_operator.gateway.proxy import Proxy
from pagemill_operator.gateway.served import Served

_BACKLOG = 1024  # a fleet of clients may come at once


class Door:
    """`ending`: whether the whole process is about to."""

    def __init__(self, proxy: Proxy, host: str | None, port: int, served: Served, ending: Callable[[], bool]) -> None:
        self.port = port
        self.served = served  # whoever comes next is this one's
        self.retiring = False  # soon closed: connections are not kept
        self.listens = False
        self._proxy, self._host, self._ending = proxy, host, ending
        self._active = 0  # requests
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self) -> None:
        """Raises OSError where the port is taken."""
        server = HttpServer(self._serve, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._host, self.port, backlog=_BACKLOG)
        try:
            await self._site.start()
        except (OSError, OverflowError):
            await self._runner.cleanup()
            raise
        self.listens = True

    async def stop_listening(self) -> None:
        """Connections that are open go on."""
        if self.listens:
            self.listens = False
            await self._site.stop()

    async def idle(self, seconds: float) -> None:
        """Until nothing runs or waits, or for so long."""
        await asyncio.wait([waiting := asyncio.ensure_future(self._idle.wait())], timeout=max(seconds, 0.0))
        waiting.cancel()

    async def close(self) -> None:
        """Cut what is left."""
        self.listens = False
        await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._active += 1
        self._idle.clear()
        try:
            return await self._proxy.serve(request, self.served, self._closing)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    def _closing(self) -> bool:
        return self.retiring or self._ending()
