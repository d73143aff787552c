"""The client over real HTTP: what it asks, and the one line that it makes of every answer that is none.

That a real Prometheus answers as these do is seen in tests/prometheus.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from pagemill_operator.cluster.prometheus import answers, query
from pagemill_operator.errors import PrometheusError
from pagemill_operator.samples import Series


class Api:
    """Answers with `status`, `headers` and `body`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: Any = success([])
        self.asked: list[web.Request] = []
        self.hold: asyncio.Event | None = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if self.hold is not None:
            await self.hold.wait()
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return web.Response(text=text, status=self.status, headers=self.headers)


def success(result: list[Any], kind: str = "vector", **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}, **more}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    served, app = Api(), web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    async with TestServer(app) as running:
        served.url = str(running.make_url("/")).rstrip("/")
        yield served


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def refusal(session: aiohttp.ClientSession, url: str, token: str | None = None, seconds: float = 5) -> str:
    with pytest.raises(PrometheusError) as raised:
        await query(session, url, "up", token, seconds)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600
    return str(raised.value)


async def test_series_come_back_with_labels_value_and_time(api: Api, session: aiohttp.ClientSession) -> None:
    api.body = success(
        [
            {"metric": {"__name__": "up", "pod": "a"}, "value": [1700000000.5, "3"]},
            {"metric": {}, "value": [1700000000.5, "NaN"]},
            {"metric": {}, "value": [1700000000.5, "+Inf"]},
        ],
        infos=["PromQL info: it may not be a counter"],
    )
    first, second, third = await query(session, api.url, 'up{pod=~"a|b"} + 1')
    assert first == Series({"__name__": "up", "pod": "a"}, 3.0, 1700000000.5)
    assert math.isnan(second.value)
    assert third.value == math.inf
    (request,) = api.asked
    assert (request.method, request.path) == ("GET", "/api/v1/query")
    assert dict(request.query) == {"query": 'up{pod=~"a|b"} + 1'}
    assert "Authorization" not in request.headers


@pytest.mark.parametrize("ending", ["/prom", "/prom/"])
async def test_a_base_url_may_have_a_path(api: Api, session: aiohttp.ClientSession, ending: str) -> None:
    assert await query(session, api.url + ending, "up", "s3cret") == []
    (request,) = api.asked
    assert request.path == "/prom/api/v1/query"
    assert request.headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_token_that_is_wanted_or_refused(api: Api, session: aiohttp.ClientSession, status: int) -> None:
    api.status, api.body = status, "nope"
    without = f"Prometheus at {api.url} needs a token: set prometheus.bearerTokenSecretRef ({status})"
    assert await refusal(session, api.url) == without
    words = await refusal(session, api.url, "s3cret")
    assert words == f"Prometheus at {api.url} refuses the token of prometheus.bearerTokenSecretRef ({status})"


async def test_what_prometheus_says_is_said(api: Api, session: aiohttp.ClientSession) -> None:
    api.status, api.body = 400, {"status": "error", "errorType": "bad_data", "error": "parse error:\nunexpected end"}
    assert await refusal(session, api.url) == f"Prometheus at {api.url} answers 400: parse error: unexpected end"
    api.status, api.body = 503, {"status": "error", "error": "x" * 5000}
    assert (await refusal(session, api.url)).startswith(f"Prometheus at {api.url} answers 503: xxx")
    api.status, api.body = 502, "<html>secrets of the gateway</html>"
    assert await refusal(session, api.url) == f"Prometheus at {api.url} answers 502"


async def test_a_redirect_is_told_and_not_followed(api: Api, session: aiohttp.ClientSession) -> None:
    api.status, api.headers = 302, {"Location": "https://login.example/start?state=secret"}
    words = await refusal(session, api.url, "s3cret")
    assert words == (
        f"Prometheus at {api.url} redirects to https://login.example/start (302): set prometheus.url to where it is"
    )
    assert len(api.asked) == 1


async def test_what_is_no_prometheus(api: Api, session: aiohttp.ClientSession) -> None:
    api.status, api.body = 404, "page not found"
    assert (await refusal(session, api.url)).startswith(
        f"there is no Prometheus at {api.url} (404): prometheus.url must"
    )
    api.status = 200
    for body in ("<html>welcome</html>", "[]", "[" * 100_000, "x" * (5 * 1024 * 1024)):
        api.body = body
        assert (await refusal(session, api.url)).startswith(f"what answers at {api.url} is no Prometheus")


@pytest.mark.parametrize(
    "body",
    [
        {"status": "success"},
        {"status": "success", "data": None},
        success([{"metric": {}}]),
        success([{"metric": {}, "value": ["now", "1"]}]),
        success([{"metric": {}, "value": [1.0, "many"]}]),
        success([{"metric": [], "value": [1.0, "1"]}]),
        success([7]),
    ],
)
async def test_json_of_another_shape(api: Api, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    api.body = body
    assert (await refusal(session, api.url)).startswith(f"what answers at {api.url} speaks no API")


async def test_an_answer_that_is_no_vector_or_not_whole(api: Api, session: aiohttp.ClientSession) -> None:
    api.body = success([1.0, "1"], "scalar")
    assert "answers with no vector" in await refusal(session, api.url)
    api.body = success([], warnings=["No StoreAPI matched", "store-1 timed out"])
    words = await refusal(session, api.url)
    assert words == (
        f'the answer of Prometheus at {api.url} may be incomplete: ["No StoreAPI matched", "store-1 timed out"]'
    )


async def test_silence_and_absence(api: Api, session: aiohttp.ClientSession) -> None:
    api.hold = asyncio.Event()
    words = await refusal(session, api.url, seconds=0.2)
    api.hold.set()
    assert words == f"Prometheus at {api.url} did not answer within 0.2 s"
    nowhere = f"http://127.0.0.1:{unused_port()}"
    assert (await refusal(session, nowhere)).startswith(f"Prometheus at {nowhere} can't be reached: ")


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://prometheus/", "http://", "http://[::1", "/api", "http://a:b:c"]
)
async def test_what_is_no_url(session: aiohttp.ClientSession, url: str) -> None:
    assert "prometheus.url" in await refusal(session, url)


async def test_what_is_secret_in_a_url_is_not_repeated(api: Api, session: aiohttp.ClientSession) -> None:
    api.status = 500
    url = api.url.replace("http://", "http://user:hidden@")
    for token in (None, "s3cret", "new\nline"):
        words = await refusal(session, url, token)
        assert not any(secret in words for secret in ("hidden", "s3cret", "new"))


async def test_queries_are_asked_at_once_and_each_has_its_own_answer(session: aiohttp.ClientSession) -> None:
    both = asyncio.Barrier(2)

    async def handle(request: web.Request) -> web.Response:
        await both.wait()
        if request.query["query"] == "bad":
            return web.json_response({"error": "parse error"}, status=400)
        return web.json_response(success([{"metric": {"pod": "a"}, "value": [1, "2"]}]))

    app = web.Application()
    app.router.add_get("/api/v1/query", handle)
    async with TestServer(app) as running:
        told = await answers(session, str(running.make_url("/")), {"first": "good", "second": "bad"})
    assert told["first"] == [Series({"pod": "a"}, 2.0, 1.0)]
    assert isinstance(told["second"], PrometheusError)
    assert str(told["second"]).endswith("answers 400: parse error")
