"""What goes wrong while an answer is made, on every endpoint alike: a client that goes, a stop, a device that fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.routing import Route

from pagemill.model_files import ModelFiles, inspect
from pagemill_server.api.app import make_app
from pagemill_server.lifecycle import Phase
from tests.server.api.asking import error_of
from tests.server.api.running import NAME, Running, serving, until
from tests.server.api.test_overload import held, send
from tests.server.api.test_status import Broken
from tests.server.test_serve import living
from tests.server.tiny import write_tiny_llama

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
LONG: dict[str, Any] = {"model": NAME, "temperature": 1, "ignore_eos": True}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "completions": ("/v1/completions", 1, {"prompt": "a", "max_tokens": 4000}),
    "several prompts": ("/v1/completions", 4, {"prompt": ["a", "b"], "n": 2, "max_tokens": 4000}),
    "echo": ("/v1/completions", 1, {"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 4000}),
    "chat": ("/v1/chat/completions", 1, {"model": "tiny/llama", "messages": HI, "max_tokens": 4000}),
    "several choices": ("/v1/chat/completions", 3, {"model": "tiny/llama", "messages": HI, "n": 3, "max_tokens": 4000}),
    "tools": ("/v1/chat/completions", 1, {"model": "tiny/llama", "messages": HI, "tools": [TOOL], "max_tokens": 3500}),
    "responses": ("/v1/responses", 1, {"input": "hi", "max_output_tokens": 4000}),
    "responses with tools": ("/v1/responses", 1, {"input": "hi", "tools": [FLAT_TOOL], "max_output_tokens": 3500}),
}
GENERATING = {path for path, _, _ in CASES.values()}
OTHERS = {
    "/v1/embeddings",
    "/v1/responses/{id}/cancel",
    "/tokenize",
    "/detokenize",
}  # that generate nothing, or say so below

every_case = pytest.mark.parametrize("case", CASES)
both_ways = pytest.mark.parametrize("stream", [False, True])


def test_no_endpoint_is_left_out(server: Running) -> None:
    routes = [route for route in make_app(server.service).routes if isinstance(route, Route)]
    posts = {route.path for route in routes if "POST" in (route.methods or ())}
    assert posts >= GENERATING
    assert posts - GENERATING <= OTHERS


def raw_post(server: Running, path: str, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.settimeout(30)
    raw.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    return raw


@both_ways
@every_case
def test_a_client_that_goes_frees_its_blocks(idle_server: Running, case: str, stream: bool) -> None:
    path, sequences, body = CASES[case]
    with raw_post(idle_server, path, LONG | body | {"stream": stream}):
        until(lambda: idle_server.stats.num_running == sequences)
    idle_server.wait_idle()


@both_ways
@every_case
def test_a_client_that_goes_while_it_waits_in_the_queue(tiny: Path, case: str, stream: bool) -> None:
    path, _, body = CASES[case]
    with held(tiny) as (server, hanging, pool):
        first = pool.submit(send, server)
        until(lambda: server.stats.num_added == 0 and server.service.in_flight == 1)
        with raw_post(server, path, LONG | body | {"stream": stream}):
            until(lambda: server.service.in_flight == 2)
        hanging.go.set()
        assert first.result().status_code == 200
        server.wait_idle()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("tiny")
    return inspect(write_tiny_llama(folder, max_position_embeddings=4096))


@both_ways
@every_case
def test_a_stop_ends_what_outlasts_it_with_a_last_word(files: ModelFiles, case: str, stream: bool) -> None:
    path, sequences, body = CASES[case]
    with living(files, shutdown_timeout=0) as (it, client), ThreadPoolExecutor(1) as pool:
        until(lambda: client.get("/ready").status_code == 200)
        answer = pool.submit(client.post, path, json=LONG | body | {"stream": stream})
        until(lambda: it.running() == sequences and it.generated() > 0)
        it.signal()
        check_last_word(answer.result(), stream, path, "shutting_down")
        it.end()
        assert it.error is None


@both_ways
@every_case
def test_a_device_that_fails_in_the_middle(tiny: Path, case: str, stream: bool) -> None:
    path, _, body = CASES[case]
    with serving(tiny) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, path, json=LONG | body | {"stream": stream})
        until(lambda: server.stats.generation_tokens > 0)
        server.model.engine._runner = Broken()
        check_last_word(answer.result(), stream, path, None)
        server.wait_idle()


def check_last_word(response: httpx.Response, streamed: bool, path: str, code: str | None) -> None:
    """An error object with a 5xx, or as the stream's last event; chat and completions say [DONE] after it."""
    if not streamed:
        assert response.status_code == (503 if code == "shutting_down" else 500)
        assert error_of(response)["code"] == code
        return
    *_, last = [part for part in response.text.split("\n\n") if part]
    if path == "/v1/responses":
        event = json.loads(last.partition("\ndata: ")[2])
        assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
        return
    *_, error, last = [part for part in response.text.split("\n\n") if part]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == code
    assert last == "data: [DONE]"


def test_openais_client_raises_what_a_cut_stream_says(files: ModelFiles) -> None:
    with living(files, shutdown_timeout=0) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        http = httpx.Client(timeout=60, verify=False)
        with openai.OpenAI(base_url=f"{it.url}/v1", api_key="x", max_retries=0, http_client=http) as ours:
            stream = ours.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            it.signal()
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)


# Whoever may come again is told when.


@pytest.fixture(scope="module")
def refusing(tiny: Path) -> Iterator[Running]:
    with serving(tiny) as running:
        running.service.lifecycle.enter(Phase.DRAINING)
        running.service.lifecycle.refusing = True
        yield running


@pytest.fixture(scope="module")
def loading(tiny: Path) -> Iterator[Running]:
    with serving(tiny, loaded=False) as running:
        yield running


@pytest.mark.parametrize("path", [*sorted(GENERATING), "/v1/embeddings"])
@pytest.mark.parametrize(("state", "code"), [("refusing", "shutting_down"), ("loading", "model_loading")])
def test_a_503_says_when_to_come_again(request: pytest.FixtureRequest, path: str, state: str, code: str) -> None:
    server: Running = request.getfixturevalue(state)
    with server.client() as client:
        response = client.post(path, json={})
    assert response.status_code == 503
    assert error_of(response)["code"] == code
    assert int(response.headers["retry-after"]) >= 1


def test_a_body_that_stops_coming_when_the_server_ends(tiny: Path) -> None:
    with serving(tiny) as server, socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: server.service.in_flight == 1)
        server.service.ending._loop.call_soon_threadsafe(server.service.ending.set)  # type: ignore[attr-defined]
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in received


def test_a_dead_engine_says_when_to_come_again(tiny: Path) -> None:
    with serving(tiny) as server, server.client() as client:
        server.model.engine._runner = Broken()
        loaded = server.service.loaded
        assert loaded is not None
        until(lambda: client.post("/v1/completions", json={"prompt": "a"}).status_code == 503)
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert error_of(response)["code"] == "engine_dead"
        assert int(response.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 503
