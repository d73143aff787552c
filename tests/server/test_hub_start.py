"""A server whose model is on the hub only: fetched while /ready tells how far it is, and gone on with after a start was cut."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import parse_termination
from pagemill.model_source import find
from tests.pagemill.hub_server import HubServer, serve
from tests.server.tiny import write_tiny_llama

REPO = "org/tiny"


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tiny_hub(folder: Path) -> dict[str, dict[str, bytes]]:
    return {REPO: {path.name: path.read_bytes() for path in write_tiny_llama(folder).iterdir()}}


@contextmanager
def server(hub_url: str, models: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    environ = {
        **os.environ,
        "HF_ENDPOINT": hub_url,
        "PAGEMILL_MODELS": str(models),
        "PAGEMILL_TERMINATION_LOG": str(models.parent / "termination"),
        "OMP_NUM_THREADS": "1",
    }
    flags = ["--port", str(port), "--kv-cache-memory-bytes", "1MiB"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pagemill", "serve", REPO, *flags], env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def ready(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            body: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        body = json.loads(error.read())
    except OSError:
        body = {}
    return body


def until_ready(port: int, process: subprocess.Popen[str]) -> set[str]:
    """The phases that were seen on the way."""
    phases = set()
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        body = ready(port)
        phases.add(body.get("phase", ""))
        if body.get("ready"):
            return phases
        time.sleep(0.02)
    raise AssertionError(f"not ready, exit code {process.poll()}, phases {phases}")


def test_a_start_that_broke_off_is_gone_on_with(tmp_path: Path, free_port: int) -> None:
    models = tmp_path / "models"
    with serve(HubServer(tiny_hub(tmp_path / "origin"))) as hub:
        hub.breaks["model.safetensors"] = 1000
        with server(hub.url, models, free_port) as process:
            assert process.wait(timeout=240) == 1
        failure = parse_termination((tmp_path / "termination").read_text())
        assert failure is not None
        assert failure.reason == "HubUnreachable"
        with server(hub.url, models, free_port) as process:
            assert until_ready(free_port, process) <= {
                "",
                "Starting",
                "Downloading",
                "LoadingWeights",
                "Warmup",
                "Serving",
            }
        resumed = [seen for seen in hub.seen if seen.path.endswith("model.safetensors")]
        assert resumed[-1].headers.get("Range", "").startswith("bytes=")
    assert find(REPO, {"PAGEMILL_MODELS": str(models)}) is not None  # what is here is not asked for again


def test_no_hub_and_no_model_is_one_line_with_both(tmp_path: Path, free_port: int) -> None:
    models = tmp_path / "models"
    with server("http://127.0.0.1:9", models, free_port) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("pagemill serve:")]
    assert str(models) in line
    assert "127.0.0.1:9" in line
    assert "Traceback" not in said


def test_a_damaged_copy_that_no_hub_can_mend_is_told_with_the_hub(tmp_path: Path, free_port: int) -> None:
    models = tmp_path / "models"
    weights = write_tiny_llama(models / REPO) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with server("http://127.0.0.1:9", models, free_port) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("pagemill serve: HubUnreachable: ")]
    assert "model.safetensors is cut short" in line
    assert "127.0.0.1:9" in line


def test_another_architecture_on_the_hub_is_refused_as_one_on_disk_is(tmp_path: Path, free_port: int) -> None:
    repos = tiny_hub(tmp_path / "origin")
    config = json.loads(repos[REPO]["config.json"])
    repos[REPO]["config.json"] = json.dumps(config | {"architectures": ["MambaForCausalLM"]}).encode()
    with serve(HubServer(repos)) as hub, server(hub.url, tmp_path / "models", free_port) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "UnsupportedArchitecture" in said
    assert "can't be served: it has layers that keep a state" in said
    assert "MambaForCausalLM" in said
