"""The front port: what it passes on and how it chooses, against real servers on other ports."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from pagemill_operator.cluster.local.front import Front
from pagemill_operator.gateway.route import Route
from tests.operator.cluster.local.conftest import free_port


class Backend:
    """A server that holds requests to /hold until it is told, counts them, and sees them cut."""

    def __init__(self) -> None:
        self.port = free_port()
        self.release = asyncio.Event()
        self.held = 0
        self.arrived = asyncio.Semaphore(0)
        self.cut = asyncio.Event()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/hold":
            self.held += 1
            self.arrived.release()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cut.set()
                raise
        if request.path == "/half":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.abort()
            return response
        if request.path == "/raw":
            return web.Response(body=await request.read(), headers={"Connection": "close"})
        body = await request.text()
        text = f"{request.method} {request.raw_path} {body} {request.headers.get('X-Asked', '')}"
        return web.Response(text=text, status=418, headers={"X-Backend": str(self.port), "Connection": "close"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Backend]:
        runner = web.ServerRunner(
            web.Server(self.serve, handler_cancellation=True, auto_decompress=False), shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield self
        finally:
            await runner.cleanup()


class Setting:
    """A front before some backends; `ports` is what is ready."""

    def __init__(self, front: Front, session: aiohttp.ClientSession, ports: list[int]) -> None:
        self.front, self.session, self.ports = front, session, ports

    def ready(self, *ports: int) -> None:
        self.ports[:] = ports
        self.front.refresh()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.front.port}{path}"


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    ports: list[int] = []
    front = Front(free_port(), "tiny", lambda: ports)
    await front.open()
    try:
        async with aiohttp.ClientSession() as session:
            yield Setting(front, session, ports)
    finally:
        await front.close()


async def test_a_request_and_its_answer_pass_unchanged(setting: Setting) -> None:
    async with Backend().running() as backend:
        setting.ready(backend.port)
        request = setting.session.post(
            URL(setting.url("/v1/a%20b?x=%2F&y"), encoded=True), data="body", headers={"X-Asked": "yes"}
        )
        async with request as response:
            assert response.status == 418
            assert await response.text() == "POST /v1/a%20b?x=%2F&y body yes"
            assert response.headers["X-Backend"] == str(backend.port)
            assert response.headers.get("Connection") is None, "that was about the inner connection"


async def test_a_packed_body_is_not_unpacked_on_the_way(setting: Setting) -> None:
    packed = gzip.compress(b"body")
    async with Backend().running() as backend:
        setting.ready(backend.port)
        for encoding, body in (("gzip", packed), ("gzip", b"not packed at all")):
            asked = setting.session.post(setting.url("/raw"), data=body, headers={"Content-Encoding": encoding})
            async with asked as response:
                assert await response.read() == body


@pytest.mark.parametrize("target", ["GET http://x/health", "OPTIONS *", "CONNECT x:443"])
async def test_what_only_a_proxy_is_asked_is_refused(setting: Setting, target: str) -> None:
    async with Backend().running() as backend:
        setting.ready(backend.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", setting.front.port)
        writer.write(f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(setting: Setting) -> None:
    async with Backend().running() as backend:
        setting.ready(backend.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", setting.front.port)
        writer.write(b"POST /it HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 418 ")
        assert b"POST /it body" in await asyncio.wait_for(reader.readuntil(b"body"), 60)
        writer.close()


async def test_the_replica_with_the_least_to_do_is_asked(setting: Setting) -> None:
    async with Backend().running() as one, Backend().running() as two:
        setting.ready(one.port, two.port)
        held = [asyncio.create_task(setting.session.get(setting.url("/hold"))) for _ in range(4)]
        for backend in (one, one, two, two):
            await asyncio.wait_for(backend.arrived.acquire(), 60)
        assert (one.held, two.held) == (2, 2)
        one.release.set()
        await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        async with setting.session.get(setting.url("/")) as response:
            assert response.headers["X-Backend"] == str(one.port)
        two.release.set()
        for answer in await asyncio.gather(*held):
            answer.release()


async def test_a_replica_that_cannot_be_reached_is_passed_over(setting: Setting) -> None:
    async with Backend().running() as backend:
        setting.ready(1, backend.port)
        async with setting.session.get(setting.url("/")) as response:
            assert response.headers["X-Backend"] == str(backend.port)
    setting.ready(1)
    async with setting.session.get(setting.url("/")) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "no_ready_replica"


async def test_a_client_that_hangs_up_is_passed_on(setting: Setting) -> None:
    async with Backend().running() as backend:
        setting.ready(backend.port)
        asking = asyncio.create_task(setting.session.get(setting.url("/hold")))
        await asyncio.wait_for(backend.arrived.acquire(), 60)
        asking.cancel()
        await asyncio.wait_for(backend.cut.wait(), 60)


async def test_an_answer_that_breaks_off_breaks_off(setting: Setting) -> None:
    async with Backend().running() as backend:
        setting.ready(backend.port)
        with pytest.raises(aiohttp.ClientError):
            async with setting.session.get(setting.url("/half")) as response:
                await response.read()


async def test_a_taken_port_is_an_error(setting: Setting) -> None:
    with pytest.raises(OSError, match="address already in use"):
        await Front(setting.front.port, "other", list).open()


async def test_nobody_waits_where_nothing_may_sleep(setting: Setting) -> None:
    async with setting.session.post(setting.url("/v1/completions"), data="{}") as response:
        assert response.status == 503
    assert setting.front.held == 0


async def test_where_it_may_sleep_a_request_waits_and_is_counted() -> None:
    ports: list[int] = []
    told: list[int] = []
    route = Route("tiny", free_port(), wake_timeout_seconds=60)
    front = Front(route.port, "tiny", lambda: ports, lambda: route, lambda: told.append(front.held))
    await front.open()
    try:
        async with Backend().running() as backend, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{route.port}/v1/completions"
            asking = asyncio.create_task(session.post(url, data="{}"))
            async with asyncio.timeout(60):
                while not front.held:  # noqa: ASYNC110  a counter has no event
                    await asyncio.sleep(0.002)
            assert told == [1]
            ports.append(backend.port)
            front.refresh()
            async with await asking as response:
                assert response.status == 418
            assert told == [1, 0]
            ports.clear()
            front.refresh()
            asking = asyncio.create_task(session.post(url, data="{}"))
            async with asyncio.timeout(60):
                while not front.held:  # noqa: ASYNC110  a counter has no event
                    await asyncio.sleep(0.002)
            closing = asyncio.create_task(front.close())
            async with await asking as response:
                assert response.status == 503, "who waits when it closes is told so"
            await closing
    finally:
        await front.close()
