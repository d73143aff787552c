"""/health, /ready, /version, /v1/models, keys, and what a request gets while there is no model to ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from pagemill import __version__
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.lifecycle import Phase
from pagemill_server.text.tokenizer import ModelTokenizer
from tests.server.api.asking import error_of
from tests.server.api.running import NAME, Running, serving, until
from tests.server.api.test_disconnect import send


def test_ready(idle_server: Running) -> None:
    with idle_server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        response = client.get("/ready")
        assert client.get("/version").json() == {"version": __version__}
    assert response.status_code == 200
    body = response.json()
    assert (body["ready"], body["phase"], body["percent"]) == (True, "Serving", 100)
    assert body["capacity"]["kvBlocks"] == idle_server.model.limits.num_blocks
    assert body["capacity"]["maxModelLenThatFits"] == 4096


def test_models(idle_server: Running) -> None:
    models = idle_server.openai.models.list().data
    assert [model.id for model in models] == [NAME, "alias"]
    assert idle_server.openai.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError) as error:
        idle_server.openai.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_while_loading(tiny: Path) -> None:
    with serving(tiny, loaded=False, startup_timeout=100) as server, server.client() as client:
        server.service.lifecycle.progress(250, 1000)
        response = client.get("/ready")
        assert response.status_code == 503
        body = response.json()
        assert (body["ready"], body["phase"], body["percent"]) == (False, "LoadingWeights", 25)
        assert (body["bytesLoaded"], body["bytesTotal"]) == (250, 1000)
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.get("/v1/models").json()["data"][0]["id"] == NAME
        refused = client.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert error_of(refused)["code"] == "model_loading"
        server.service.lifecycle.last_progress -= 101
        assert client.get("/health").status_code == 503
        server.service.lifecycle.progress(251, 1000)
        assert client.get("/health").status_code == 200


def test_a_dead_engine(tiny: Path) -> None:
    """The runner breaks for good: the stream ends with an error event, /health fails, new requests get a 503."""
    with serving(tiny) as server, server.client() as client:
        body: dict[str, Any] = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.model.engine._runner = Broken()
            received = [line for line in lines if line]
        assert response.status_code == 200
        assert '"error"' in received[-2]
        assert received[-1] == "data: [DONE]"
        whole = client.post("/v1/completions", json=body | {"stream": False})
        streamed = client.post("/v1/completions", json=body)  # fails before its first token: no 200, no events
        assert {whole.status_code, streamed.status_code} <= {500, 503}
        assert error_of(streamed)["type"] in ("server_error", "service_unavailable")
        loaded = server.service.loaded
        assert loaded is not None
        until(lambda: loaded.engine.dead is not None)
        assert client.get("/health").status_code == 503
        assert client.get("/ready").status_code == 503
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "engine_dead"


class Broken:
    """A device that fails every step from now on."""

    def run(self, output: object) -> Any:
        raise RuntimeError("device lost")


class Hanging:
    """A device whose step comes back only when it is let go."""

    def __init__(self, runner: ModelRunner) -> None:
        self.go = threading.Event()
        self._runner = runner

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        assert self.go.wait(30)
        return self._runner.run(output)


def test_a_stalled_engine(tiny: Path) -> None:
    with serving(tiny, stall_timeout=0.05) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        hanging = server.model.engine._runner = Hanging(server.model.engine._runner)
        answer = pool.submit(server.openai.completions.create, model=NAME, prompt="a", max_tokens=1)
        try:
            until(lambda: client.get("/health").status_code == 503)
            assert client.get("/ready").status_code == 503
        finally:
            hanging.go.set()
        assert answer.result().choices
        until(lambda: client.get("/health").status_code == 200)


class SlowTokenizer:
    """A prompt that takes as long to tokenise as the test wants."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.begun.set()
        assert self.go.wait(30)
        return self._tokenizer.encode(text, add_special)


@contextmanager
def slow_tokenizer(server: Running) -> Iterator[SlowTokenizer]:
    loaded = server.service.loaded
    assert loaded is not None
    slow = SlowTokenizer(loaded.tokenizer)
    server.service.loaded = replace(loaded, tokenizer=slow)  # type: ignore[arg-type]
    try:
        yield slow
    finally:
        slow.go.set()


def test_tokenising_blocks_nobody(tiny: Path) -> None:
    body = {"prompt": "long", "max_tokens": 1}
    with serving(tiny) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        with slow_tokenizer(server) as slow:
            answer = pool.submit(server.openai.completions.create, model=NAME, prompt="long", max_tokens=1)
            assert slow.begun.wait(30)
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", json=body | {"prompt": [1]}).status_code == 200
        assert answer.result().choices


def test_hanging_up_while_the_prompt_is_tokenised(tiny: Path) -> None:
    with serving(tiny) as server, slow_tokenizer(server) as slow:
        raw = send(server, {"prompt": "long", "max_tokens": 1})
        assert slow.begun.wait(30)
        raw.close()
        until(lambda: server.service.in_flight == 0)
        slow.go.set()
        server.wait_idle()
        assert server.stats.prompt_tokens == 0


def test_keys(tiny: Path) -> None:
    with serving(tiny, api_keys=("first", "second")) as server, server.client() as client:
        body = {"prompt": "a", "max_tokens": 1}
        for key in ("first", "second"):
            answer = client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"authorization": "first"}):
            for path in ("/v1/completions", "/v1/chat/completions", "/nowhere"):
                refused = client.post(path, json=body, headers=headers)
                assert refused.status_code == 401
                assert error_of(refused)["code"] == "invalid_api_key"
        assert client.get("/v1/models").status_code == 401
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert client.get(path).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            server.openai.models.list()


def test_draining(tiny: Path) -> None:
    """First still serving, with `Connection: close`; then a 503 with Retry-After."""
    body = {"prompt": "a", "max_tokens": 1}
    with serving(tiny) as server, server.client() as client:
        assert "connection" not in client.post("/v1/completions", json=body).headers
        server.service.lifecycle.enter(Phase.DRAINING)
        served = client.post("/v1/completions", json=body)
        assert (served.status_code, served.headers["connection"]) == (200, "close")
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["phase"]) == (503, "Draining")
        server.service.lifecycle.refusing = True
        refused = client.post("/v1/completions", json=body)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.headers["retry-after"]
        assert error_of(refused)["code"] == "shutting_down"
        assert client.get("/health").status_code == 200
