"""The lists that fill the cache: page by page, and what becomes of pages whose versions the API server has forgotten."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.cluster.kubernetes import KubernetesCluster

NAMES = ("a", "b", "c", "d", "e")


class Pages:
    """LLMDeployments in pages of two; every other list is empty. `fails`: what the next calls are answered, None for well."""

    def __init__(self, *fails: int | None) -> None:
        self.fails = list(fails)
        self.asked: list[tuple[str | None, str | None]] = []

    async def handle(self, request: web.Request) -> web.Response:
        if not request.path.endswith("/llmdeployments"):
            return web.json_response({"metadata": {}, "items": []})
        limit, token = request.query.get("limit"), request.query.get("continue")
        self.asked.append((limit, token))
        if self.fails and (status := self.fails.pop(0)):
            return web.json_response({"message": "The provided continue parameter is too old"}, status=status)
        begin = int(token or 0)
        end = begin + 2 if limit else len(NAMES)
        metadata = {"continue": str(end)} if end < len(NAMES) else {}
        return web.json_response({"metadata": metadata, "items": [item(name) for name in NAMES[begin:end]]})


def item(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}}


async def listed(pages: Pages) -> tuple[Key, ...]:
    app = web.Application()
    app.router.add_get("/{path:.*}", pages.handle)
    async with (
        TestServer(app) as server,
        Api(client.Configuration(host=str(server.make_url("/")).rstrip("/"))) as api,
        aiohttp.ClientSession() as session,
    ):
        return await KubernetesCluster(api, ObjectCache(), session, ()).refresh()


async def test_a_list_comes_in_pages() -> None:
    pages = Pages()
    assert await listed(pages) == tuple(Key("ns", name) for name in NAMES)
    assert [token for _, token in pages.asked] == [None, "2", "4"]


async def test_pages_that_went_stale_are_asked_for_anew_in_one() -> None:
    pages = Pages(None, 410)
    assert await listed(pages) == tuple(Key("ns", name) for name in NAMES)
    assert [token for _, token in pages.asked] == [None, "2", None]
    assert pages.asked[-1][0] is None


async def test_a_list_that_fails_is_not_taken_for_an_empty_one() -> None:
    for fails in ((500,), (None, 410, 500)):
        with pytest.raises(ClusterError):
            await listed(Pages(*fails))
