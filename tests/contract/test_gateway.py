"""The gateway before real servers: official clients see no difference, and what it says by itself is what the server would."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import openai
import pytest
from starlette.routing import Route as ServerRoute

from pagemill_operator.gateway.answers import MODEL_PATHS
from pagemill_operator.gateway.body import MAX_BODY_BYTES
from pagemill_operator.gateway.gateway import Gateway, GatewayConfig
from pagemill_operator.gateway.proxy import Patience
from pagemill_operator.gateway.route import Route, Target
from pagemill_server.api import service as server_service
from pagemill_server.api.app import make_app
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.api.service import Service
from pagemill_server.lifecycle import Lifecycle
from tests.server.api.running import NAME, Running, serving
from tests.server.tiny import write_tiny_llama

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
KEY = "sk-a"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With a key."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "keys" / "tiny").mkdir(parents=True)
    (folder / "keys" / "tiny" / "a").write_text(KEY)
    model = write_tiny_llama(folder / "model", max_position_embeddings=4096)
    with serving(model, api_keys=KeyRing((), str(folder / "keys" / "tiny"))) as running:
        yield running


class Through:
    """A gateway that knows no replica yet, and clients on both ways."""

    def __init__(
        self, gateway: Gateway, server: Running, session: aiohttp.ClientSession, closing: contextlib.AsyncExitStack
    ) -> None:
        self.gateway, self.server, self.session, self._closing = gateway, server, session, closing
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.route = Route(
                "tiny", probe.getsockname()[1], wake_timeout_seconds=60, sleeps=True, models=(NAME, "alias"), keys=True
            )
        self.url = f"http://127.0.0.1:{self.route.port}"

    async def replicas(self, *addresses: str) -> None:
        await self.gateway.apply({"tiny": Target(self.route, frozenset(addresses))})

    async def wake(self) -> None:
        """Once somebody waits, the server is there."""
        async with asyncio.timeout(30):
            while not self.gateway.served["tiny"].held:  # noqa: ASYNC110  a counter has no event
                await asyncio.sleep(0.005)
        await self.replicas(self.server.url.removeprefix("http://"))

    def client(self, key: str = KEY) -> openai.AsyncOpenAI:
        """Closed with the fixture."""
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        self._closing.push_async_callback(client.close)
        return client

    async def both(self, method: str, path: str, **more: Any) -> list[tuple[int, Any, str | None]]:
        """What the server and the gateway say: status, body and the one header that matters."""
        said = []
        for url in (self.server.url, self.url):
            async with self.session.request(method, url + path, **more) as response:
                said.append((response.status, await response.json(), response.headers.get("WWW-Authenticate")))
        return said


@pytest.fixture
async def through(server: Running, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Through]:
    assert server.service.keys._file is not None
    folder = str(server.service.keys._file._path.parent)
    config = GatewayConfig(host="127.0.0.1", keys_folder=folder, patience=Patience(0.05, 0.05))
    async with aiohttp.ClientSession() as session, Gateway(config) as gateway, contextlib.AsyncExitStack() as closing:
        made = Through(gateway, server, session, closing)
        await made.replicas()
        yield made


@pytest.mark.parametrize("held", [True, False])
async def test_an_official_client_sees_no_difference(through: Through, server: Running, held: bool) -> None:
    if not held:
        await through.replicas(server.url.removeprefix("http://"))
    client, asked = through.client(), {"model": NAME, "messages": MESSAGES, "max_tokens": 8, "seed": 1}
    waking = asyncio.create_task(through.wake()) if held else None
    answer = await client.chat.completions.create(**asked)
    if waking is not None:
        await waking
        await through.replicas()
        waking = asyncio.create_task(through.wake())
    stream = await client.chat.completions.create(**asked, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == answer.choices[0].message.content
    if waking is not None:
        await waking


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_an_error_after_the_wait_of_a_stream_is_raised(through: Through, path: str) -> None:
    client = through.client()
    if path == "chat":
        asked: Any = client.chat.completions.create(model="absent", messages=MESSAGES, stream=True)
    else:
        asked = client.responses.create(model="absent", input="Hello", stream=True)
    stream = await asked  # it has shown life
    await through.wake()
    with pytest.raises(openai.APIError, match="does not exist"):
        async for _ in stream:
            pass


async def test_a_wrong_key_is_refused_in_the_server_s_words(through: Through) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        direct, by_gateway = await through.both("POST", "/v1/chat/completions", json={}, headers=headers)
        assert direct == by_gateway
        assert direct[0] == 401
    with pytest.raises(openai.AuthenticationError):
        await through.client("wrong").models.list()


async def test_models_are_listed_as_the_server_lists_them(through: Through) -> None:
    authorized = {"Authorization": f"Bearer {KEY}"}
    for path in ("/v1/models", "/v1/models/alias", "/v1/models/tiny/llama", "/v1/models/absent"):
        direct, by_gateway = await through.both("GET", path, headers=authorized)
        assert direct[0] == by_gateway[0]
        assert _without_what_only_it_knows(direct[1]) == _without_what_only_it_knows(by_gateway[1])
    assert [model.id async for model in through.client().models.list()] == [NAME, "alias"]


def test_what_may_wait_is_what_the_server_needs_its_model_for() -> None:
    app = make_app(Service(("name",), Lifecycle(), block_size=16))
    posts = {route.path for route in app.routes if isinstance(route, ServerRoute) and "POST" in (route.methods or ())}
    assert {path for path in posts if "{" not in path} == MODEL_PATHS


def test_bodies_have_one_limit() -> None:
    assert MAX_BODY_BYTES == server_service.MAX_BODY_BYTES


def _without_what_only_it_knows(body: Any) -> Any:
    """When the process began, and how long its context is."""
    if isinstance(body, dict):
        kept = {name: value for name, value in body.items() if name not in ("created", "max_model_len")}
        return {name: _without_what_only_it_knows(value) for name, value in kept.items()}
    return [_without_what_only_it_knows(each) for each in body] if isinstance(body, list) else body
