"""A gateway on real ports before upstreams that a test tells what to answer, and a patient look at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pagemill_operator.gateway.body import BodyLimits
from pagemill_operator.gateway.gateway import Gateway, GatewayConfig
from pagemill_operator.gateway.proxy import Patience
from pagemill_operator.gateway.route import Route, Target
from pagemill_operator.gateway.served import Served
from pagemill_operator.gateway.waiting_room import RoomLimits

PATIENCE = 60.0  # seconds; a slow machine needs some, a test that passes none of it
CHAT = "/v1/chat/completions"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Upstream:
    """Answers each request with what `answer` makes of it; as it comes, what it was is in `seen`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.seen: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.running = 0
        self.release = asyncio.Event()  # for those that `hold`
        self.arrived = asyncio.Semaphore(0)
        self.gone = asyncio.Semaphore(0)  # a client hung up on it
        self.answer: Callable[[web.BaseRequest], Any] = self.say_who

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def say_who(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"port": self.port})

    async def hold(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.release.wait()
        return web.json_response({"port": self.port})

    async def drained(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"error": {"message": "draining"}}, status=503, headers={"Retry-After": "5"})

    async def events(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in ('{"n": 1}', '{"n": 2}', "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        return response

    async def half(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def dies(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        self.seen.append((request.method, request.raw_path, request.headers.copy(), body))
        self.running += 1
        self.arrived.release()
        try:
            response = await self.answer(request)
            response.force_close()
            return response
        except asyncio.CancelledError:
            self.gone.release()
            raise
        finally:
            self.running -= 1

    async def one_came(self) -> None:
        await asyncio.wait_for(self.arrived.acquire(), PATIENCE)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Upstream]:
        server = web.Server(self._serve, handler_cancellation=True, auto_decompress=False)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield self
        finally:
            self.release.set()
            await runner.cleanup()


class Setting:
    """A gateway with one route; `replicas` is what its source says."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession, keys: Path) -> None:
        self.gateway, self.session, self.keys = gateway, session, keys
        self.route = Route("tiny", free_port(), wake_timeout_seconds=60, sleeps=True, models=("tiny", "alias"))
        self.stirred: list[str] = []

    @property
    def served(self) -> Served:
        return self.gateway.served["tiny"]

    def url(self, path: str = CHAT) -> str:
        return f"http://127.0.0.1:{self.route.port}{path}"

    async def replicas(self, *upstreams: Upstream | str, **changes: Any) -> None:
        self.route = replace(self.route, **changes)
        addresses = frozenset(each if isinstance(each, str) else each.address for each in upstreams)
        await self.gateway.apply({"tiny": Target(self.route, addresses)})

    async def ask(self, body: object = None, path: str = CHAT, **more: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer to a POST."""
        async with self.session.post(self.url(path), data=json.dumps(body or {}), **more) as response:
            return response.status, await response.json()

    def asking(self, body: object = None, **more: Any) -> asyncio.Task[tuple[int, Any]]:
        return asyncio.create_task(self.ask(body, **more))

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not met():  # noqa: ASYNC110  counters have no event
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def gateway_of(keys: Path, **changes: Any) -> AsyncIterator[Setting]:
    """With other limits than the usual."""
    stirred: list[str] = []
    config = replace(GatewayConfig(host="127.0.0.1", keys_folder=str(keys)), **changes)
    async with aiohttp.ClientSession() as session, Gateway(config, stirred=stirred.append) as gateway:
        setting = Setting(gateway, session, keys)
        setting.stirred = stirred
        await setting.replicas()
        yield setting


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    """Comments come quickly; all else is as usual."""
    async with gateway_of(tmp_path / "keys", patience=Patience(0.05, 0.05)) as made:
        yield made


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream().listening() as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[Upstream]:
    async with Upstream().listening() as made:
        yield made


__all__ = ["BodyLimits", "RoomLimits", "Setting", "Upstream", "free_port", "gateway_of"]
