"""What a connection says when a request's handler ends badly: to a client that is there, and to nobody where it has gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientConnectionResetError, web

from pagemill_operator.gateway.http_server import HttpServer
from tests.operator.gateway.conftest import PATIENCE


@contextlib.asynccontextmanager
async def answered(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[bytes]:
    """All that a client gets."""
    runner = web.ServerRunner(HttpServer(handler, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    yield await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    await runner.cleanup()


async def test_a_bug_is_logged_and_answered_with_the_error_object(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        raise ValueError("unforeseen")

    async with answered(handler) as said:
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert json.loads(body)["error"] == {
            "message": "The gateway failed to handle this request.",
            "type": "server_error",
            "param": None,
            "code": "gateway_failed",
        }
    assert "unforeseen" in caplog.text


async def test_a_bug_in_the_middle_of_an_answer_cuts_it(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        raise ValueError("unforeseen")

    async with answered(handler) as said:
        assert said.endswith(b"half\r\n"), "and no end of the chunks"
    assert "unforeseen" in caplog.text


async def test_a_client_that_goes_while_it_is_written_to_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """As a write finds it when the connection closes between two of them."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await web.StreamResponse().prepare(request)
        raise ClientConnectionResetError("Cannot write to closing transport")

    async with answered(handler):
        assert not caplog.records
