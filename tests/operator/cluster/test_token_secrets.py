"""Prometheus' token from a Secret: read where the chart allows it, kept for a while, and each way to be without it in words."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from pagemill_operator.cluster import token_secrets
from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.kubernetes import KubernetesCluster
from pagemill_operator.cluster.token_secrets import TokenSecrets
from pagemill_operator.errors import PrometheusError
from pagemill_operator.samples import Series
from pagemill_operator.spec_scaling import Prometheus, TokenSecret

REFERENCE = TokenSecret(name="prometheus", key="token")


class Secrets:
    """An API server with one Secret, or none of it for us."""

    def __init__(self, status: int = 200, **data: str) -> None:
        self.status = status
        self.data = data
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        return web.json_response({"kind": "Secret", "data": self.data})

    async def read(self, times: int = 1) -> str:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        async with (
            TestServer(app) as server,
            Api(client.Configuration(host=str(server.make_url("/")).rstrip("/"))) as api,
        ):
            tokens = TokenSecrets(api)
            return [await tokens.read("team", REFERENCE) for _ in range(times)][-1]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_a_token_is_read_once_a_minute() -> None:
    secrets = Secrets(token=encoded("s3cret\n"))
    assert await secrets.read(times=3) == "s3cret"
    assert secrets.asked == ["/api/v1/namespaces/team/secrets/prometheus"]


async def test_a_renewed_token_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_secrets, "KEPT_SECONDS", 0.0)
    secrets = Secrets(token=encoded("s3cret"))
    await secrets.read(times=3)
    assert len(secrets.asked) == 3


@pytest.mark.parametrize(
    ("secrets", "says"),
    [
        (Secrets(403), "set prometheusTokens: true in the chart's values"),
        (Secrets(404), "there is no Secret prometheus with the key token"),
        (Secrets(other=encoded("x")), "there is no Secret prometheus with the key token"),
        (Secrets(token="%%%"), "is no token"),
        (Secrets(token=encoded("\u00e9")), "is no token"),
    ],
    ids=["forbidden", "none", "another key", "not base64", "not ascii"],
)
async def test_what_is_wrong_is_said_with_what_to_do(secrets: Any, says: str) -> None:
    with pytest.raises(PrometheusError, match=says):
        await secrets.read()


class PrometheusBeside(Secrets):
    """The same server as a Prometheus, which answers whoever brings the token."""

    async def handle(self, request: web.Request) -> web.Response:
        if not request.path.endswith("/query"):
            return await super().handle(request)
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.json_response({"status": "error", "error": "who are you"}, status=401)
        vector = [{"metric": {"pod": "chat-1"}, "value": [1.5, request.query["query"]]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": vector}})

    async def answers(self) -> Mapping[str, Any]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        async with (
            TestServer(app) as server,
            Api(client.Configuration(host=str(server.make_url("/")).rstrip("/"))) as api,
            aiohttp.ClientSession() as session,
        ):
            cluster = KubernetesCluster(api, ObjectCache(), session, ())
            named = {"url": str(server.make_url("/")), "bearerTokenSecretRef": REFERENCE.model_dump()}
            asked = Prometheus.model_validate(named)
            return await cluster.query("team", asked, {"first": "7", "second": "8"})


async def test_all_queries_are_asked_with_the_token() -> None:
    found = await PrometheusBeside(token=encoded("s3cret")).answers()
    assert found == {name: [Series({"pod": "chat-1"}, value, 1.5)] for name, value in (("first", 7), ("second", 8))}


@pytest.mark.parametrize("secrets", [PrometheusBeside(403), PrometheusBeside(token=encoded("another"))])
async def test_without_the_right_token_each_query_says_why(secrets: PrometheusBeside) -> None:
    found = await secrets.answers()
    assert set(found) == {"first", "second"}
    assert all(isinstance(answer, PrometheusError) for answer in found.values())
