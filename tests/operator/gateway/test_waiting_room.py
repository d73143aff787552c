"""The wait for a replica: who may, for how long, what is seen of it, and that nobody else wakes a deployment."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from pagemill_operator.gateway.answers import MODEL_PATHS
from pagemill_operator.gateway.route import Route, Target
from pagemill_operator.gateway.waiting_room import RoomLimits
from tests.operator.gateway.conftest import Setting, Upstream, free_port, gateway_of


@pytest.mark.parametrize("path", sorted(MODEL_PATHS))
async def test_a_request_for_the_model_waits_for_a_replica(setting: Setting, upstream: Upstream, path: str) -> None:
    asking = asyncio.create_task(setting.ask({"n": 1}, path))
    await setting.until(lambda: setting.served.held == 1)
    assert setting.stirred == ["tiny"], "whoever wakes it has been told"
    await setting.replicas(upstream)
    assert await asking == (200, {"port": upstream.port})
    assert upstream.seen[0][3] == b'{"n": 1}'
    assert (setting.served.held, setting.served.held_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/health", 200, {"status": "ok", "readyReplicas": 0}),
        ("/ready", 503, {"ready": False, "readyReplicas": 0}),
        ("/metrics", 503, None),
        ("/version", 503, None),
        ("/tokenizer_info", 503, None),
        ("/v1/models/absent", 404, None),
        ("/v1/chat/completions", 503, None),
        ("/anything", 503, None),
    ],
)
async def test_looking_wakes_nobody(setting: Setting, path: str, status: int, body: object) -> None:
    async with setting.session.get(setting.url(path)) as response:
        assert response.status == status
        answer = await response.json()
        assert answer == body or (body is None and answer["error"]["message"])
        assert ("Retry-After" in response.headers) is (status == 503)
    assert not setting.stirred


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/alias", "/ready"])
async def test_who_does_not_sleep_and_has_no_replica_is_not_well(setting: Setting, path: str) -> None:
    await setting.replicas(sleeps=False)
    async with setting.session.get(setting.url(path)) as response:
        assert response.status == 503
        assert "Retry-After" in response.headers
    assert not setting.stirred


async def test_what_is_served_is_known_without_a_replica(setting: Setting) -> None:
    async with setting.session.get(setting.url("/v1/models")) as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["object"], card["root"]) for card in cards] == [
        ("tiny", "model", "tiny"),
        ("alias", "model", "tiny"),
    ]
    async with setting.session.get(setting.url("/v1/models/alias")) as response:
        assert await response.json() == cards[1]
    async with setting.session.post(setting.url("/v1/unknown")) as response:
        assert response.status == 503
    assert not setting.stirred


async def test_a_wait_ends(setting: Setting) -> None:
    await setting.replicas(wake_timeout_seconds=1)
    async with setting.session.post(setting.url(), data="{}") as response:
        assert response.status == 503
        assert response.headers["Retry-After"]
        error = (await response.json())["error"]
    assert (error["code"], error["type"]) == ("no_ready_replica", "service_unavailable")
    assert setting.served.held == 0


async def test_a_client_that_hangs_up_is_forgotten(setting: Setting) -> None:
    asking = setting.asking({"stream": True})
    await setting.until(lambda: setting.served.held == 1)
    asking.cancel()
    await setting.until(lambda: setting.served.held == 0)
    assert setting.served.outcomes["gone"] == 1


async def test_no_more_wait_than_may(tmp_path: Path, upstream: Upstream) -> None:
    async with gateway_of(tmp_path, room=RoomLimits(2, 1000)) as setting:
        waiting = [setting.asking() for _ in range(2)]
        await setting.until(lambda: setting.served.held == 2)
        async with setting.session.post(setting.url(), data="{}") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "too_many_waiting")
            assert response.headers["Retry-After"]
        await setting.replicas(upstream)
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]


async def test_nor_more_bytes(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, room=RoomLimits(10, 1000)) as setting:
        first = setting.asking({"x": "y" * 600})
        await setting.until(lambda: setting.served.held == 1)
        assert (await setting.ask({"x": "y" * 600}))[0] == 503
        first.cancel()
        await setting.until(lambda: setting.served.held == 0)
        again = setting.asking({"x": "y" * 600})
        await setting.until(lambda: setting.served.held == 1)
        again.cancel()


async def test_one_deployment_leaves_the_others_their_share(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, room=RoomLimits(4, 1000)) as setting:
        beside = Route("beside", free_port())
        await setting.gateway.apply({"tiny": Target(setting.route, frozenset()), "beside": Target(beside, frozenset())})
        waiting = [setting.asking() for _ in range(2)]
        await setting.until(lambda: setting.served.held == 2)
        assert (await setting.ask())[0] == 503
        url = f"http://127.0.0.1:{beside.port}/v1/completions"
        others = [asyncio.create_task(setting.session.post(url, data="{}")) for _ in range(2)]
        await setting.until(lambda: setting.gateway.served["beside"].held == 2)
        for task in (*waiting, *others):
            task.cancel()


async def test_a_deployment_that_goes_keeps_nobody_waiting(setting: Setting) -> None:
    asking = setting.asking()
    await setting.until(lambda: setting.served.held == 1)
    await setting.gateway.apply({})
    status, body = await asking
    assert (status, body["error"]["code"]) == (503, "no_ready_replica")


async def test_a_stream_shows_life_while_it_waits(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.events
    async with setting.session.post(
        setting.url(), data='{"stream": true}', headers={"X-Request-Id": "mine"}
    ) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert response.headers["X-Request-Id"] == "mine"
        assert [await response.content.readuntil(b"\n\n") for _ in range(2)] == [b": waiting\n\n"] * 2
        await setting.replicas(upstream)
        rest = (await response.content.read()).replace(b": waiting\n\n", b"")
    assert rest == b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n'
    assert setting.served.outcomes["answered"] == 1


async def test_what_goes_wrong_after_a_sign_of_life_is_an_event(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(wake_timeout_seconds=1)
    assert (await _last_event(setting))["error"]["code"] == "no_ready_replica"

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model", "code": "model_not_found"}}, status=404)

    for answer, code in (
        (refuse, "model_not_found"),
        (upstream.say_who, "replica_failed"),
        (upstream.dies, "replica_failed"),
    ):
        upstream.answer = answer
        await setting.replicas(wake_timeout_seconds=60)
        assert (await _last_event(setting, upstream))["error"]["code"] == code


async def test_a_stream_that_was_held_and_breaks_off_breaks_off(setting: Setting, upstream: Upstream) -> None:
    async def half(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.answer = half
    with pytest.raises(aiohttp.ClientError):
        await _last_event(setting, upstream)


async def test_who_waits_is_not_lost_to_a_replica_that_takes_nothing(
    setting: Setting, upstream: Upstream, other: Upstream
) -> None:
    """It drains, or its address leads nowhere any more: held again, and counted as waiting, until another is there."""
    upstream.answer = upstream.drained
    await setting.replicas(upstream, f"127.0.0.1:{free_port()}")
    asking = setting.asking({"n": 1})
    await upstream.one_came()
    await setting.until(lambda: setting.served.held == 1)
    await setting.replicas(upstream, other)
    assert await asking == (200, {"port": other.port})


async def test_a_replica_that_took_nothing_is_asked_again(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.drained
    await setting.replicas(upstream)
    asking = setting.asking()
    await setting.until(lambda: setting.served.held == 1)
    upstream.answer = upstream.say_who
    assert await asking == (200, {"port": upstream.port})


async def test_without_a_time_to_wait_nobody_waits(setting: Setting) -> None:
    target = Target(replace(setting.route, wake_timeout_seconds=0), frozenset())
    await setting.gateway.apply({"tiny": target})
    assert (await setting.ask())[0] == 503
    assert not setting.stirred


async def _last_event(setting: Setting, upstream: Upstream | None = None) -> dict[str, dict[str, str]]:
    """Of a stream that is held until it has shown life, and then meets the upstream."""
    await setting.replicas()
    async with setting.session.post(setting.url(), data='{"stream": true}') as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
        if upstream is not None:
            await setting.replicas(upstream)
        events = (await response.content.read()).strip().split(b"\n\n")
    found: dict[str, dict[str, str]] = json.loads(events[-1].removeprefix(b"data: "))
    return found
