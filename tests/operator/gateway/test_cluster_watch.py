"""Following a namespace: changes arrive, and an API server that is away, forgetful or cut off changes nothing that is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pagemill_operator.gateway.cluster_watch import ClusterApi, follow
from pagemill_operator.gateway.route import Route, RouteTable
from tests.operator.gateway.api_server import KINDS, ApiServer
from tests.operator.gateway.conftest import PATIENCE
from tests.operator.gateway.test_cluster_routes import endpoint, found, service

CHAT = Route("chat", 20001)


class Following:
    """What has been published, and a patient look at it."""

    def __init__(self, server: ApiServer, token: Path) -> None:
        self.server, self.token = server, token
        self.tables: list[RouteTable] = []
        self._news = asyncio.Event()

    async def publish(self, table: RouteTable) -> None:
        self.tables.append(table)
        self._news.set()

    async def until(self, met: Callable[[RouteTable], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not (self.tables and met(self.tables[-1])):
                self._news.clear()
                await self._news.wait()

    async def cut(self) -> None:
        """Every watch; until both have begun again."""
        before = self._watches()
        self.server.cut()
        async with asyncio.timeout(PATIENCE):
            while self._watches() < before + 2:  # noqa: ASYNC110  it is the server that knows
                await asyncio.sleep(0.005)
        await self.until_watched()

    def _watches(self) -> int:
        return len([query for _, query, _ in self.server.asked if "watch" in query])

    async def until_watched(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(self.server.watching[kind] for kind in KINDS):  # noqa: ASYNC110  it is the server that knows
                await asyncio.sleep(0.005)

    async def replicas_are(self, *addresses: str) -> None:
        await self.until(lambda table: "chat" in table and table["chat"].replicas == set(addresses))


@pytest.fixture
async def following(tmp_path: Path) -> AsyncIterator[Following]:
    server, token = ApiServer(), tmp_path / "token"
    token.write_text("first\n")
    made = Following(server, token)
    async with server.listening() as url:
        task = asyncio.create_task(follow(ClusterApi(url, "ns", token_file=str(token)), made.publish))
        yield made
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def ready(*addresses: str) -> dict[str, object]:
    return found(*(endpoint(address) for address in addresses))


async def test_what_changes_arrives(following: Following) -> None:
    server = following.server
    await following.until(lambda table: table == {})
    await following.until_watched()
    server.put("services", service(CHAT.to_json()))
    server.put("endpointslices", ready("10.0.0.1"))
    await following.replicas_are("10.0.0.1:8000")
    server.put("endpointslices", ready("10.0.0.1", "10.0.0.2"))
    await following.replicas_are("10.0.0.1:8000", "10.0.0.2:8000")
    server.put("services", service(Route("chat", 20002).to_json()))
    await following.until(lambda table: table["chat"].route.port == 20002)
    server.drop("endpointslices", "chat-replicas-x")
    await following.replicas_are()
    server.drop("services", "chat-replicas")
    await following.until(lambda table: table == {})
    paths = {path for path, _, _ in server.asked}
    assert paths == {"/api/v1/namespaces/ns/services", "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"}
    assert {query["labelSelector"] for _, query, _ in server.asked} == {"pagemill.dev/deployment"}


async def test_what_was_there_before_is_in_the_first_table(following: Following) -> None:
    following.server.put("services", service(CHAT.to_json()))
    following.server.put("endpointslices", ready("10.0.0.1"))
    await following.replicas_are("10.0.0.1:8000")
    assert [len(table) for table in following.tables] == [1], "and no table before both lists are in"


async def test_a_cut_watch_goes_on_from_where_it_was(following: Following) -> None:
    server = following.server
    server.put("services", service(CHAT.to_json()))
    await following.until_watched()
    await following.cut()
    server.put("endpointslices", ready("10.0.0.1"))
    await following.replicas_are("10.0.0.1:8000")
    assert len([query for _, query, _ in server.asked if "watch" not in query]) == 2, "nothing is listed again"


async def test_an_api_server_that_is_away_changes_nothing(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    server = following.server
    server.put("services", service(CHAT.to_json()))
    server.put("endpointslices", ready("10.0.0.1"))
    await following.replicas_are("10.0.0.1:8000")
    await following.until_watched()
    server.away = True
    before, asked = len(following.tables), len(server.asked)
    server.cut()
    async with asyncio.timeout(PATIENCE):
        while len(server.asked) < asked + 4:  # noqa: ASYNC110  it is the server that knows
            await asyncio.sleep(0.01)
    assert len(following.tables) == before
    assert "503: " in caplog.text
    server.put("endpointslices", ready("10.0.0.2"))
    server.away = False
    await following.replicas_are("10.0.0.2:8000")


@pytest.mark.parametrize("how", ["status", "event"])
async def test_a_version_that_is_forgotten_is_listed_anew(following: Following, how: str) -> None:
    server = following.server
    server.put("services", service(CHAT.to_json()))
    server.put("endpointslices", ready("10.0.0.1"))
    await following.replicas_are("10.0.0.1:8000")
    await following.until_watched()
    server.objects["endpointslices"] = {}  # which no watch tells
    if how == "status":
        server.expired = set(KINDS)
        await following.cut()
    else:
        server.say("endpointslices", {"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    await following.replicas_are()


async def test_a_bookmark_moves_the_version(following: Following) -> None:
    server = following.server
    await following.until_watched()
    for kind in KINDS:
        server.say(kind, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5000"}}})
        server.version = 5000
    server.put("services", service(CHAT.to_json()))
    await following.until(lambda table: "chat" in table)
    await following.cut()
    versions = [int(query["resourceVersion"]) for _, query, _ in server.asked if "watch" in query]
    assert versions[0] == versions[1] == 100
    assert min(versions[2:]) >= 5000


async def test_a_token_that_was_renewed_is_used(following: Following) -> None:
    await following.until_watched()
    following.token.write_text("second")
    await following.cut()
    assert following.server.asked[-1][2] == "Bearer second"
    assert following.server.asked[0][2] == "Bearer first"
