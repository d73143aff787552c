"""The course of a request: what passes, who is asked, what is tried again, and what is said when it can't go on."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from pagemill_operator.gateway import upstream as upstream_module
from pagemill_operator.gateway.body import BodyLimits
from tests.operator.gateway.conftest import CHAT, PATIENCE, Setting, Upstream, free_port, gateway_of


async def test_a_request_passes_unchanged(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(upstream)
    headers = {
        "X-Asked": "yes",
        "Connection": "X-Secret",
        "X-Secret": "of this connection",
        "X-Forwarded-For": "1.2.3.4",
    }
    url = URL(setting.url("/v1/a%20b?x=%2F&y"), encoded=True)
    async with setting.session.put(url, data="body", headers=headers) as response:
        assert response.status == 200
        assert await response.json() == {"port": upstream.port}
    ((method, path, seen, body),) = upstream.seen
    assert (method, path, body) == ("PUT", "/v1/a%20b?x=%2F&y", b"body")
    assert seen["X-Asked"] == "yes"
    assert seen["Host"] == f"127.0.0.1:{setting.route.port}"
    assert "X-Secret" not in seen
    assert seen["X-Forwarded-For"] == "1.2.3.4, 127.0.0.1"


async def test_an_answer_passes_unchanged(setting: Setting, upstream: Upstream) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(status=418, reason="short and stout", body=gzip.compress(b"packed"))
        response.headers.update({"Content-Encoding": "gzip", "X-Answer": "1"})
        response.headers.add("Set-Cookie", "a=1")
        response.headers.add("Set-Cookie", "b=2")
        return response

    upstream.answer = answer
    await setting.replicas(upstream)
    async with setting.session.get(setting.url("/any"), cookies={}) as response:
        assert (response.status, response.reason) == (418, "short and stout")
        assert await response.read() == b"packed"
        assert response.headers["X-Answer"] == "1"
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert "Connection" not in response.headers, "that was about the inner connection"


async def test_a_packed_body_is_not_unpacked_on_the_way(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(upstream)
    for body in (gzip.compress(b"body"), b"not packed at all"):
        async with setting.session.post(setting.url(), data=body, headers={"Content-Encoding": "gzip"}):
            assert upstream.seen[-1][3] == body


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_bodies_of_any_size_come_whole(setting: Setting, upstream: Upstream, size: int) -> None:
    await setting.replicas(upstream)
    for data in (io.BytesIO(b"x" * size), _pieces(size)):  # with its length, and in chunks
        async with setting.session.post(setting.url(), data=data) as response:
            assert response.status == 200
        assert upstream.seen[-1][3] == b"x" * size
        assert upstream.seen[-1][2]["Content-Length"] == str(size)


@pytest.mark.parametrize(("given", "kept"), [("mine-1", True), (None, False), ("not fit", False)])
async def test_a_request_has_an_id_on_both_sides(
    setting: Setting, upstream: Upstream, given: str | None, kept: bool
) -> None:
    await setting.replicas(upstream)
    headers = {} if given is None else {"X-Request-Id": given}
    await setting.ask(headers=headers)
    assert (upstream.seen[0][2]["X-Request-Id"] == given) is kept
    await setting.replicas()
    async with setting.session.get(setting.url("/nothing"), headers=headers) as response:
        assert response.status == 503
        assert (response.headers["X-Request-Id"] == given) is kept


@pytest.mark.parametrize("target", ["GET http://x/health", "OPTIONS *", "CONNECT x:443", "no HTTP at all \x01"])
async def test_what_is_no_request_to_a_server_is_refused(setting: Setting, upstream: Upstream, target: str) -> None:
    await setting.replicas(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", setting.route.port)
    writer.write(f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    assert answer.split(b" ")[1] == b"400"
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert not upstream.seen


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", setting.route.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode())
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 200 ")
    assert upstream.seen[0][3] == b"body"
    writer.close()


async def test_a_replica_that_can_not_be_reached_is_passed_over_and_then_avoided(
    setting: Setting, upstream: Upstream
) -> None:
    await setting.replicas(f"127.0.0.1:{free_port()}", upstream)
    assert [await setting.ask() for _ in range(10)] == [(200, {"port": upstream.port})] * 10
    assert setting.served.taken.total() <= 11


async def test_one_that_drains_is_passed_over(setting: Setting, upstream: Upstream, other: Upstream) -> None:
    other.answer = other.drained
    await setting.replicas(upstream, other)
    assert [await setting.ask({"n": n}) for n in range(10)] == [(200, {"port": upstream.port})] * 10
    assert sorted(body for _, _, _, body in upstream.seen) == [b'{"n": %d}' % n for n in range(10)]


async def test_what_nobody_takes_and_may_not_wait_is_answered_by_the_last(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.drained
    await setting.replicas(upstream)
    async with setting.session.get(setting.url("/ready")) as response:
        assert (response.status, await response.json()) == (503, {"error": {"message": "draining"}})
    await setting.replicas(f"127.0.0.1:{free_port()}")
    async with setting.session.get(setting.url("/metrics")) as response:
        assert response.status == 503
        assert response.headers["Retry-After"]
        assert (await response.json())["error"]["code"] == "no_ready_replica"


async def test_one_that_ends_before_it_answers_is_not_asked_again(
    setting: Setting, upstream: Upstream, other: Upstream
) -> None:
    upstream.answer, other.answer = upstream.dies, other.dies
    await setting.replicas(upstream, other)
    status, body = await setting.ask()
    assert (status, body["error"]["code"]) == (502, "replica_failed")
    assert len(upstream.seen) + len(other.seen) == 1, "it may have been computed"
    assert setting.served.outcomes["failed"] == 1


async def test_an_answer_that_breaks_off_breaks_off(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.half
    await setting.replicas(upstream)
    with pytest.raises(aiohttp.ClientError):
        await setting.ask()
    await setting.until(lambda: setting.served.outcomes["cut"] == 1)


async def test_a_client_that_hangs_up_is_passed_on(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.hold
    await setting.replicas(upstream)
    asking = setting.asking()
    await upstream.one_came()
    assert setting.served.running == {upstream.address: 1}
    asking.cancel()
    await asyncio.wait_for(upstream.gone.acquire(), PATIENCE)
    await setting.until(lambda: setting.served.outcomes["gone"] == 1)
    assert not setting.served.running


async def test_a_client_that_reads_nothing_does_not_keep_a_replica(
    setting: Setting, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 100_000)

    monkeypatch.setattr(upstream_module, "READ_SECONDS", 0.1)
    upstream.answer = endless
    await setting.replicas(upstream)
    _, writer = await asyncio.open_connection("127.0.0.1", setting.route.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    await setting.until(lambda: setting.served.outcomes["gone"] == 1)
    await asyncio.wait_for(upstream.gone.acquire(), PATIENCE)
    assert not setting.served.running
    writer.close()


async def test_a_body_that_is_too_large(tmp_path: Path, upstream: Upstream) -> None:
    async with gateway_of(tmp_path, bodies=BodyLimits(size=1000, memory=1500)) as setting:
        await setting.replicas(upstream)
        for data in (b"x" * 1001, _pieces(1001)):
            async with setting.session.post(setting.url(), data=data) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "body_too_large"
        assert not upstream.seen
        assert (await setting.ask({"x": "y" * 900}))[0] == 200


async def test_bodies_that_are_too_large_together(tmp_path: Path, upstream: Upstream) -> None:
    upstream.answer = upstream.hold
    async with gateway_of(tmp_path, bodies=BodyLimits(size=1000, memory=1500)) as setting:
        await setting.replicas(upstream)
        first = setting.asking({"x": "y" * 900})
        await upstream.one_came()
        status, body = await setting.ask({"x": "y" * 900})
        assert (status, body["error"]["code"]) == (503, "too_much_at_once")
        upstream.release.set()
        assert (await first)[0] == 200
        assert (await setting.ask({"x": "y" * 900}))[0] == 200


async def test_a_body_that_never_comes(tmp_path: Path, upstream: Upstream) -> None:
    async with gateway_of(tmp_path, bodies=BodyLimits(stall=0.05)) as setting:
        await setting.replicas(upstream)
        reader, writer = await asyncio.open_connection("127.0.0.1", setting.route.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo".encode())
        assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for begin in range(0, size, 50_000):
        yield b"x" * min(50_000, size - begin)
