"""POST /drain: what SIGTERM would begin, but the server stays, says how far it is, and can be called back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from pagemill.model_files import ModelFiles, inspect
from pagemill_server.api.service import Service
from pagemill_server.config import ServerConfig
from pagemill_server.drain import Drain, DrainIsFinal, Patience
from pagemill_server.lifecycle import Lifecycle, Phase
from tests.server.api.running import until
from tests.server.test_serve import ENDLESS, Living, living, loads_when_told
from tests.server.tiny import write_tiny_llama

TOKEN = "of-the-test-4711"
SHORT: dict[str, Any] = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@contextmanager
def managed(files: ModelFiles, **server: Any) -> Iterator[tuple[Living, httpx.Client, httpx.Client]]:
    """A server, a client of its serving port and one of its management port."""
    with (
        living(files, management_token=TOKEN, **server) as (it, client),
        httpx.Client(
            base_url=it.management_url, timeout=60, verify=False, headers={"authorization": f"Bearer {TOKEN}"}
        ) as manager,
    ):
        until(lambda: client.get("/ready").status_code == 200)
        yield it, client, manager


@pytest.fixture(scope="module")
def shared(files: ModelFiles) -> Iterator[tuple[Living, httpx.Client, httpx.Client]]:
    with managed(files) as server:
        yield server


@pytest.fixture
def server(
    shared: tuple[Living, httpx.Client, httpx.Client],
) -> Iterator[tuple[Living, httpx.Client, httpx.Client]]:
    yield shared
    assert shared[2].delete("/drain").json()["phase"] == "Serving"


def state(manager: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = manager.get("/drain").raise_for_status().json()
    return found


def drained(manager: httpx.Client) -> bool:
    return bool(state(manager)["drained"])


def test_an_idle_server_is_drained_at_once_and_stays(server: tuple[Living, httpx.Client, httpx.Client]) -> None:
    _, client, manager = server
    assert state(manager) == {"phase": "Serving", "draining": False, "drained": False, "inFlight": 0}
    begun = manager.post("/drain")
    assert begun.status_code == 202
    assert begun.json()["draining"]
    until(lambda: drained(manager))
    assert state(manager) == {"phase": "Draining", "draining": True, "drained": True, "inFlight": 0}
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 200
    ready = client.get("/ready")
    assert (ready.status_code, ready.json()["phase"]) == (503, "Draining")
    refused = client.post("/v1/completions", json=SHORT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["retry-after"]
    assert refused.headers["connection"] == "close"


def test_what_runs_finishes_and_what_comes_in_the_lame_ducks_time_is_served(
    server: tuple[Living, httpx.Client, httpx.Client],
) -> None:
    it, client, manager = server
    device = it.unhurried()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"max_tokens": 2000})
        until(lambda: it.running() == 1)
        manager.post("/drain", json={"lameDuckSeconds": 2.0, "timeoutSeconds": 60})
        with httpx.Client(base_url=it.url, timeout=60, verify=False) as other:
            served = other.post("/v1/completions", json=SHORT)
            assert (served.status_code, served.headers["connection"]) == (200, "close")
            until(lambda: it.life.service.lifecycle.refusing)
            assert not drained(manager)
            assert state(manager)["inFlight"] == 1
        device.hurry.set()
        assert running.result().text.endswith('"finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
    until(lambda: drained(manager))


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlasts_its_time_is_ended_and_the_server_can_still_come_back(
    server: tuple[Living, httpx.Client, httpx.Client], stream: bool
) -> None:
    it, client, manager = server
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"stream": stream, "n": 2})
        until(lambda: it.running() == 2)
        manager.post("/drain", json={"timeoutSeconds": 0})
        text = running.result().text
    if stream:
        *_, error, done, _ = text.split("\n\n")
        assert done == "data: [DONE]"
        text = error.removeprefix("data: ")
    assert json.loads(text)["error"]["code"] == "shutting_down"
    until(lambda: drained(manager))
    until(lambda: it.running() == 0)
    assert manager.delete("/drain").json() == {"phase": "Serving", "draining": False, "drained": False, "inFlight": 0}
    assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_called_off_while_it_waits(server: tuple[Living, httpx.Client, httpx.Client]) -> None:
    it, client, manager = server
    device = it.unhurried()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"max_tokens": 2000})
        until(lambda: it.running() == 1)
        manager.post("/drain", json={"timeoutSeconds": 60})
        until(lambda: it.life.service.lifecycle.refusing)
        assert manager.delete("/drain").status_code == 200
        assert client.get("/ready").status_code == 200
        with httpx.Client(base_url=it.url, timeout=60, verify=False) as other:
            served = other.post("/v1/completions", json=SHORT)
        assert served.status_code == 200
        assert "connection" not in served.headers
        device.hurry.set()
        assert '"finish_reason":"length"' in running.result().text


def test_a_second_one_changes_nothing(server: tuple[Living, httpx.Client, httpx.Client]) -> None:
    it, client, manager = server
    device = it.unhurried()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"max_tokens": 2000})
        until(lambda: it.running() == 1)
        manager.post("/drain", json={"timeoutSeconds": 60})
        assert manager.post("/drain", json={"timeoutSeconds": 0}).status_code == 202
        device.hurry.set()
        assert '"finish_reason":"length"' in running.result().text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"lameDuckSeconds": -1}', "lameDuckSeconds"),
        (b'{"timeoutSeconds": "1"}', "timeoutSeconds"),
        (b'{"timeoutSeconds": true}', "timeoutSeconds"),
        (b'{"timeoutSeconds": 1e9}', "timeoutSeconds"),
        (b'{"timeout": 1}', "timeout"),
        (b"[]", None),
        (b"{", None),
    ],
)
def test_what_can_not_be_begins_nothing(
    server: tuple[Living, httpx.Client, httpx.Client], body: bytes, param: str | None
) -> None:
    _, _, manager = server
    response = manager.post("/drain", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not state(manager)["draining"]


def test_it_asks_for_the_token(server: tuple[Living, httpx.Client, httpx.Client]) -> None:
    it, client, manager = server
    with httpx.Client(base_url=it.management_url, verify=False) as stranger:
        for method in ("GET", "POST", "DELETE"):
            assert stranger.request(method, "/drain").status_code == 401
    assert client.post("/drain", headers=manager.headers).status_code == 404
    assert not state(manager)["draining"]


def test_the_token_is_no_clients_key(
    server: tuple[Living, httpx.Client, httpx.Client], caplog: pytest.LogCaptureFixture
) -> None:
    _, _, manager = server
    with caplog.at_level("INFO", "pagemill.access"):
        manager.delete("/drain")
        until(lambda: len(caplog.records) >= 1)
    assert json.loads(caplog.records[-1].getMessage())["key"] is None


def test_a_signal_after_a_drain_ends_the_process_at_once(files: ModelFiles) -> None:
    with managed(files, lame_duck_seconds=3600, shutdown_timeout=3600) as (it, _, manager):
        manager.post("/drain", json={"lameDuckSeconds": 0})
        until(lambda: drained(manager))
        it.signal()
        it.end()
    assert it.error is None


def test_a_signal_in_a_drain_goes_on_with_it_and_there_is_no_way_back(files: ModelFiles) -> None:
    with managed(files, lame_duck_seconds=3600, shutdown_timeout=3600) as (it, client, manager):
        device = it.unhurried()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"max_tokens": 2000})
            until(lambda: it.running() == 1)
            manager.post("/drain", json={"lameDuckSeconds": 0, "timeoutSeconds": 0.2})
            it.signal()
            until(lambda: it.life._drain._final)
            refused = manager.delete("/drain")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "shutting_down")
            assert manager.post("/drain").status_code == 202
            device.hurry.set()
            assert '"finish_reason":"length"' in running.result().text, "it has the time that a signal gives"
        it.end()
    assert it.error is None


def test_while_the_model_loads_there_is_nothing_to_drain(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    go = loads_when_told(monkeypatch)
    with (
        living(files, management_token=TOKEN) as (it, client),
        httpx.Client(base_url=it.management_url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False) as manager,
    ):
        response = manager.post("/drain")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        assert response.headers["retry-after"]
        go.set()
        until(lambda: client.get("/ready").status_code == 200)


def test_a_signal_beside_the_call_back_wins() -> None:
    """The drain that is called off takes a moment to end, and in that moment the process is told to stop."""

    async def both() -> tuple[Phase, bool]:
        service = Service(("tiny",), Lifecycle(0), block_size=16)
        drain = Drain(service, ServerConfig(lame_duck_seconds=0, shutdown_timeout=0))
        drain.begin(Patience(60, 60))
        await asyncio.sleep(0)
        back = asyncio.create_task(drain.call_off())
        await asyncio.sleep(0)
        await drain.finish()
        with pytest.raises(DrainIsFinal):
            await back
        service.close()
        return service.lifecycle.phase, service.lifecycle.refusing

    assert asyncio.run(both()) == (Phase.DRAINING, True)


def test_openais_client_raises_what_a_cut_stream_says(files: ModelFiles) -> None:
    with managed(files) as (it, _, manager):
        http = httpx.Client(timeout=60, verify=False)
        with openai.OpenAI(base_url=f"{it.url}/v1", api_key="x", max_retries=0, http_client=http) as client:
            stream = client.completions.create(
                model="tiny/llama", extra_body={"ignore_eos": True}, prompt="a", max_tokens=60_000, stream=True
            )
            next(iter(stream))
            manager.post("/drain", json={"timeoutSeconds": 0})
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)
