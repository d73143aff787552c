"""An engine in a process of its own: the same answers, and a front end that outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pagemill import metrics as names
from pagemill.failures import FailureReason, parse_termination
from pagemill.model_files import ModelFiles, inspect
from pagemill_server import beside, serve
from pagemill_server.beside import RemoteModel
from pagemill_server.config import ModelOptions
from tests.server.api.running import settings_for, until
from tests.server.test_serve import ENDLESS, Living, living
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import write_tiny_encoder

ASKED = {"prompt": "abc", "max_tokens": 12, "temperature": 0, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(beside.PROCESS_ENV, "1")


def ready(it: Living, client: httpx.Client) -> RemoteModel:
    until(lambda: client.get("/ready").status_code == 200 or it.error is not None, seconds=120)
    assert it.error is None
    model = it.life._model
    assert isinstance(model, RemoteModel)
    return model


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_it_answers_as_an_engine_in_a_thread_does(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for forced in ("0", "1"):
        monkeypatch.setenv(beside.PROCESS_ENV, forced)
        with living(files) as (it, client):
            until(lambda client=client: client.get("/ready").status_code == 200, seconds=120)
            answers.append(client.post("/v1/completions", json=ASKED).json()["choices"])
            assert isinstance(it.life._model, RemoteModel) is (forced == "1")
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("own_process")
def test_what_it_counts_is_shown(files: ModelFiles) -> None:
    with living(files) as (it, client):
        ready(it, client)
        assert client.get("/ready").json()["capacity"]["kvBlocks"] > 0
        assert client.post("/v1/completions", json=ASKED).status_code == 200
        until(lambda: it.generated() == 12)
        page = client.get("/metrics").text
        counts = [line for line in page.splitlines() if line.startswith(f"{names.ITERATION_TOKENS}_count")]
        assert [float(line.split()[-1]) for line in counts] == [12.0], "steps: the prompt's, and one a token after it"


@pytest.mark.usefixtures("own_process")
def test_who_hangs_up_is_aborted(files: ModelFiles) -> None:
    with living(files) as (it, client):
        ready(it, client)
        with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()  # held: one that is dropped hangs up
            next(lines)
            until(lambda: it.running() == 1)  # it says how it stands a moment after its tokens
        until(lambda: it.running() == 0)


@pytest.mark.usefixtures("own_process")
def test_a_stop_ends_the_process_too(files: ModelFiles) -> None:
    with living(files) as (it, client):
        pid = ready(it, client).child.pid
        it.signal()
        it.end()
        assert it.error is None
        assert not alive(pid)


@pytest.mark.usefixtures("own_process")
def test_a_setting_changes_and_a_request_that_cant_fit_is_refused(files: ModelFiles) -> None:
    with living(files) as (it, client):
        ready(it, client)
        loaded = it.life.service.loaded
        assert loaded is not None
        engine = loaded.engine
        config = replace(engine.config, max_num_seqs=3)
        it.loop.call_soon_threadsafe(engine.configure, config)
        until(lambda: engine.stats.places == 3)
        too_long = {"prompt": [1] * loaded.context, "max_tokens": 1}
        assert client.post("/v1/completions", json=too_long).status_code == 400


@pytest.mark.usefixtures("own_process")
def test_when_it_is_killed_streams_end_with_an_error_and_the_server_with_a_reason(files: ModelFiles) -> None:
    with living(files) as (it, client):
        pid = ready(it, client).child.pid
        with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            os.kill(pid, signal.SIGKILL)
            events = [line.removeprefix("data: ") for line in lines]
        *_, last = (event for event in events if event != "[DONE]")
        assert "error" in json.loads(last), "the last event says that the engine ended"
        it.end()
        assert it.error is not None
        failure = it.error.failure  # type: ignore[attr-defined]
        assert failure.reason is FailureReason.ENGINE_FAILED
        assert "SIGKILL" in failure.message


@pytest.mark.usefixtures("own_process")
def test_one_that_is_killed_while_it_loads_is_told(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(beside, "_PROGRAM", program)
    with living(files) as (it, _):
        it.end()
        assert it.error is not None
        assert "SIGKILL" in str(it.error)
        assert "while it loaded" in str(it.error)


@pytest.mark.usefixtures("own_process")
def test_a_failure_to_load_keeps_its_reason(files: ModelFiles) -> None:
    settings = settings_for(files.path, memory_bytes=16)
    it = Living(settings, files)
    it.end()
    assert it.error is not None
    assert it.error.failure.reason is FailureReason.KV_CACHE_TOO_SMALL  # type: ignore[attr-defined]
    assert it.error.failure.suggestion  # type: ignore[attr-defined]


@pytest.mark.usefixtures("own_process")
def test_an_encoder_is_served_from_a_process(tmp_path: Path) -> None:
    with living(inspect(write_tiny_encoder(tmp_path))) as (it, client):
        ready(it, client)
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


@pytest.fixture
def command(files: ModelFiles, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """`pagemill serve` whose engine has its own process; its address, and where it writes why it ended."""
    port, line = own_port(), tmp_path / "termination"
    environ = os.environ | {
        beside.PROCESS_ENV: "1",
        "PAGEMILL_TERMINATION_LOG": str(line),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    call = [sys.executable, "-m", "pagemill_server", "--model", str(files.path), "--port", str(port)]
    with subprocess.Popen([*call, "--kv-cache-memory-bytes", "8MiB"], env=environ, start_new_session=True) as process:
        yield process, f"http://127.0.0.1:{port}", line
        process.kill()


def own_port() -> int:
    listener = serve._listen("127.0.0.1", 0)
    with listener:
        return int(listener.getsockname()[1])


def test_the_termination_line_is_there_after_the_engine_was_killed(
    command: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, url, line = command

    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    until(is_ready, seconds=120)
    (child,) = children(process)
    os.kill(int(child), signal.SIGKILL)
    assert process.wait(60) == 1
    failure = parse_termination(line.read_text())
    assert failure is not None
    assert failure.reason is FailureReason.ENGINE_FAILED
    assert "SIGKILL" in failure.message


def test_the_engine_does_not_outlive_its_server(command: tuple[subprocess.Popen[bytes], str, Path]) -> None:
    """While it loads: a GPU that nobody serves from would be taken."""
    process, _, _ = command
    until(lambda: bool(children(process)), seconds=60)
    (child,) = children(process)
    process.kill()
    process.wait(60)
    until(lambda: not alive(int(child)) or state(int(child)) == "Z", seconds=60)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def children(process: subprocess.Popen[bytes]) -> list[str]:
    """A child belongs to the thread that started it."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [child for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize(
    ("device", "environ", "present", "wanted"),
    [
        ("cpu", {}, True, False),
        ("cuda", {}, False, True),
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"CUDA_VISIBLE_DEVICES": ""}, True, False),
        ("auto", {"CUDA_VISIBLE_DEVICES": "-1"}, True, False),
        ("auto", {"CUDA_VISIBLE_DEVICES": "1"}, True, True),
        ("cpu", {beside.PROCESS_ENV: "1"}, False, True),
        ("cuda", {beside.PROCESS_ENV: "0"}, True, False),
    ],
)
def test_where_it_gets_a_process(
    device: str, environ: dict[str, str], present: bool, wanted: bool, tmp_path: Path
) -> None:
    if present:
        (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    options = ModelOptions("m", ("m",), device=device)
    assert beside.is_wanted(options, environ, tmp_path) is wanted


def test_the_front_end_needs_no_torch() -> None:
    """Else it would import it beside the process that computes, for nothing."""
    program = "import sys, pagemill_server.serve; sys.exit('torch' in sys.modules)"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
