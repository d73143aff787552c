"""The life of a server in this process: port, loading, failure, and the stop with its lame duck, drain and end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from pagemill import hot_settings
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server import cli, serve
from pagemill_server.config import ServerConfig
from pagemill_server.lifecycle import Lifecycle
from pagemill_server.loading import LoadedModel, load
from pagemill_server.settings import Settings
from tests.server.api.running import Unhurried, settings_for, until
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import write_tiny_encoder

ENDLESS: dict[str, Any] = {"prompt": "a", "max_tokens": 60_000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


class Living:
    """A `serve.Life` in a thread, with its end."""

    def __init__(self, settings: Settings, files: ModelFiles) -> None:
        self.life = serve.Life(settings, files)
        self.error: Exception | None = None
        self._listener = serve._listen("127.0.0.1", 0)
        self._management = serve._listen("127.0.0.1", 0) if settings.server.management_token else None
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.management_url = ""
        if self._management is not None:
            self.management_url = f"http://127.0.0.1:{self._management.getsockname()[1]}"
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with (
            self._listener,
            self._management or nullcontext(),
            asyncio.Runner(loop_factory=lambda: self.loop) as runner,
        ):
            try:
                runner.run(self.life.live(self._listener, self._management))
            except PagemillError as error:
                self.error = error

    def running(self) -> int:
        stats = self.life.service.stats()
        return 0 if stats is None else stats.num_running

    def generated(self) -> int:
        """Tokens since the start."""
        stats = self.life.service.stats()
        return 0 if stats is None else stats.generation_tokens

    def unhurried(self) -> Unhurried:
        """The device of the loaded model from now on."""
        loaded = self.life.service.loaded
        assert loaded is not None
        engine = loaded.engine._engine  # type: ignore[attr-defined]
        device = engine._runner = Unhurried(engine._runner)
        return device

    def signal(self) -> None:
        self.loop.call_soon_threadsafe(self.life.stop)

    def end(self) -> None:
        self.thread.join(120)
        assert not self.thread.is_alive()


def loads_when_told(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Servers made from now on load their model when the event is set."""
    go = threading.Event()

    def slow(*arguments: Any) -> Any:
        assert go.wait(30)
        return load(*arguments)

    monkeypatch.setattr(serve, "load", slow)
    return go


@contextmanager
def living(files: ModelFiles, **server: Any) -> Iterator[tuple[Living, httpx.Client]]:
    settings = settings_for(files.path, memory_bytes=32 << 20)
    it = Living(replace(settings, server=ServerConfig(**server)), files)
    try:
        with httpx.Client(base_url=it.url, timeout=60, verify=False) as client:
            yield it, client
    finally:
        if it.thread.is_alive():
            it.signal()
            it.signal()
        it.end()


def test_it_becomes_ready_and_stops(files: ModelFiles) -> None:
    with living(files) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        it.signal()
        it.end()
        assert it.error is None


def test_an_embedding_model_is_served_and_drains(tmp_path: Path) -> None:
    with living(inspect(write_tiny_encoder(tmp_path)), lame_duck_seconds=2.0) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        assert client.get("/health").status_code == 200
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
        it.signal()
        until(lambda: client.get("/ready").json()["phase"] == "Draining")
        served = client.post("/v1/embeddings", json={"input": "a"})
        assert (served.status_code, served.headers["connection"]) == (200, "close")
        it.end()
        assert it.error is None


def test_the_stall_timeout_is_the_settings(files: ModelFiles) -> None:
    with living(files, stall_timeout=7.0) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        assert it.life.service.stall_timeout == 7.0


def test_a_running_stream_finishes_while_it_drains(files: ModelFiles) -> None:
    with living(files, lame_duck_seconds=2.0, shutdown_timeout=60) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        device = it.unhurried()
        with client.stream("POST", "/v1/completions", json=ENDLESS | {"max_tokens": 2000}) as response:
            lines = response.iter_lines()
            next(lines)
            it.signal()
            with httpx.Client(base_url=it.url, timeout=60, verify=False) as other:
                until(lambda: other.get("/ready").status_code == 503)
                assert other.get("/ready").json()["phase"] == "Draining"
                served = other.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
                assert (served.status_code, served.headers["connection"]) == (200, "close")
                until(lambda: it.life.service.lifecycle.refusing)
                assert other.post("/v1/completions", json={"prompt": "a"}).status_code == 503
            device.hurry.set()
            last = [line for line in lines if line][-2:]
        assert json.loads(last[0].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert last[1] == "data: [DONE]"
        it.end()
        assert it.error is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("waits", "signals"), [((0, 0.2), 1), ((60, 60), 2)])  # a second signal skips the waiting
def test_what_outlasts_the_timeout_ends_with_an_error(
    files: ModelFiles, stream: bool, waits: tuple[float, float], signals: int
) -> None:
    with living(files, lame_duck_seconds=waits[0], shutdown_timeout=waits[1]) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"stream": stream})
            until(lambda: it.running() == 1)
            for _ in range(signals):
                it.signal()
            response = answer.result()
        if stream:
            *_, error, done = [line for line in response.text.split("\n\n") if line]
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
            assert done == "data: [DONE]"
        else:
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "shutting_down"
            assert response.headers["retry-after"]
        it.end()
        assert it.error is None


def test_a_body_that_never_comes_whole_ends_with_the_server(
    files: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with living(files, shutdown_timeout=0.2) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        with socket.create_connection(("127.0.0.1", int(it.url.rpartition(":")[2]))) as raw:
            raw.settimeout(30)
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            until(lambda: it.life.service.in_flight == 1)
            it.signal()
            received = b"".join(iter(lambda: raw.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 503 ")
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "shutting_down"
        it.end()
    assert not [record for record in caplog.records if record.exc_info]


def test_an_engine_that_dies_ends_the_server(files: ModelFiles) -> None:
    with living(files) as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        loaded = it.life.service.loaded
        assert loaded is not None
        loaded.engine._engine._runner = None  # type: ignore[attr-defined]  every step now fails
        for _ in range(2):
            assert client.post("/v1/completions", json=ENDLESS).status_code in (500, 503)
        it.end()
    assert isinstance(it.error, PagemillError)
    assert it.error.failure.reason is FailureReason.ENGINE_FAILED


class Stuck:
    """In place of the loader: a disk that never answers, until the test lets go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, settings: Settings, files: ModelFiles, lifecycle: Lifecycle, measured: object) -> LoadedModel:
        assert self.go.wait(30)
        raise PagemillError(FailureReason.MODEL_INVALID, "too late")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    loader = Stuck()
    monkeypatch.setattr(serve, "load", loader)
    yield loader
    loader.go.set()


def test_while_it_loads_it_answers_and_stops_when_told(files: ModelFiles, stuck: Stuck) -> None:
    with living(files) as (it, client):
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["phase"], ready.json()["percent"]) == (503, "Starting", 0)
        assert ready.json()["bytesTotal"] == files.weights_bytes
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=ENDLESS).status_code == 503
        it.signal()
        it.end()
        assert it.error is None


def test_loading_that_does_not_move_ends_the_server(files: ModelFiles, stuck: Stuck) -> None:
    with living(files, startup_timeout=0.3) as (it, _):
        it.end()
    assert isinstance(it.error, PagemillError)
    assert it.error.failure.reason is FailureReason.LOAD_STALLED
    assert "--startup-timeout" in it.error.failure.message


def test_a_failure_to_load_ends_the_server(files: ModelFiles, stuck: Stuck) -> None:
    stuck.go.set()
    with living(files) as (it, _):
        it.end()
    assert isinstance(it.error, PagemillError)
    assert it.error.failure.reason is FailureReason.MODEL_INVALID


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PagemillError, match=f"port {port} on 127.0.0.1 is in use") as error:
            serve._listen("127.0.0.1", port)
    assert error.value.failure.reason is FailureReason.ADDRESS_IN_USE


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_a_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(PagemillError, match="can't listen on") as error:
        serve._listen(host, 0)
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_ipv6() -> None:
    with serve._listen("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


def test_keys_are_followed_while_it_runs(files: ModelFiles, tmp_path: Path) -> None:
    """A key that is removed is refused, a new one is taken and weighs what its file says, beside what was set on the way."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: team-a, key: a, weight: 3}, {name: team-b, key: b, weight: 2}]")
    with living(files, api_key_file=str(keys), management_port=0, management_token="t") as (it, client):

        def models(key: str) -> int:
            return client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

        def weights(**change: Any) -> dict[str, float]:
            headers, url = {"authorization": "Bearer t"}, f"{it.management_url}/config"
            answer = client.patch(url, json=change, headers=headers) if change else client.get(url, headers=headers)
            assert answer.status_code == 200
            found: dict[str, float] = answer.json()["config"]["weights"]
            return found

        until(lambda: client.get("/ready").status_code == 200)
        assert (models("a"), models("b"), models("c")) == (200, 200, 401)
        assert weights() == {"team-a": 3, "team-b": 2}
        assert weights(weights={"team-a": 3, "team-b": 2, "other": 5})["other"] == 5
        keys.write_text("keys: [{name: team-b, key: b, weight: 2}, {name: team-c, key: c, weight: 4}]")
        until(lambda: models("a") == 401)
        assert (models("b"), models("c")) == (200, 200)
        until(lambda: weights() == {"team-b": 2, "other": 5, "team-c": 4})
        metrics = client.get("/metrics").text
        assert all(f'key="{name}"' in metrics for name in ("team-a", "team-b", "team-c"))


def test_keys_that_can_not_be_are_said_at_the_start(
    files: ModelFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "team-a").write_text("key: secret\nrequestsPerMinute: many\n")
    code = cli.serve([str(files.path), "--port", "0", "--api-key-file", str(tmp_path)])
    error = capsys.readouterr().err
    assert code == cli.EXIT_INVALID
    assert error == (
        f"pagemill serve: InvalidConfiguration: --api-key-file {tmp_path}: "
        "team-a.requestsPerMinute must be a whole number from 1 up\n"
    )


def test_as_many_connections_as_the_system_allows() -> None:
    script = """
import resource
from pagemill_server import serve
hard = min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
serve.raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_the_keys_own_weights_outlive_a_change_that_does_not_name_them(files: ModelFiles, tmp_path: Path) -> None:
    """Whoever changes the weights from outside knows nothing of the keys', and the digest of settings leaves them out."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: team-a, key: a, weight: 3}]")
    with living(files, api_key_file=str(keys), management_port=0, management_token="t") as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        headers, url = {"authorization": "Bearer t"}, f"{it.management_url}/config"
        asked = client.get(url, headers=headers).json()["settings"]
        assert asked["weights"] == {}
        shown = client.patch(url, json={"weights": {"other": 5}}, headers=headers).json()
        assert shown["config"]["weights"] == {"team-a": 3, "other": 5}
        assert shown["settings"]["weights"] == {"other": 5}
        assert client.get("/ready").json()["settings"] == hot_settings.digest(asked | {"weights": {"other": 5}})
