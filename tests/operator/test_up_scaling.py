"""`pagemill up` with autoscaling: one machine sleeps, wakes and follows its load as a cluster does, with real servers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.operator.up_command import PATIENCE, Command, manifest

GENERATOR = Path(__file__).parents[2] / "examples" / "tiny_models.py"
MODEL = "pagemill/tiny"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny random model where `up` looks for models."""
    folder = tmp_path / "models"
    subprocess.run([sys.executable, "-S", str(GENERATOR), str(folder)], check=True)
    monkeypatch.setenv("PAGEMILL_MODELS", str(folder))


def ask(port: int, tokens: int = 2) -> int:
    """How many tokens came."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        usage: dict[str, Any] = json.load(answer)["usage"]
    return int(usage["completion_tokens"])


@pytest.mark.usefixtures("models")
def test_it_sleeps_wakes_for_a_request_and_grows_under_load(tmp_path: Path) -> None:
    file = tmp_path / "deployments.yaml"
    scaling = {
        "minReplicas": 0,
        "maxReplicas": 2,
        "targets": {"runningRatio": 0.3},
        "scaleDown": {"stabilizationSeconds": 2},
    }
    engine = {"kvCacheGiB": 0.125, "maxNumSeqs": 2}
    file.write_text(manifest("tiny", model=MODEL, autoscaling=scaling, engine=engine))
    up = Command(file)
    try:
        up.until(r"tiny Ready True ScaledToZero")
        assert ask(up.port) == 2
        grown = Event()

        def load() -> set[int]:
            """Ask one after another until it has grown, however fast the machine answers."""
            told = set()
            while not grown.is_set():
                told.add(ask(up.port, 200))
            return told

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(load) for _ in range(4)]
            try:
                up.until(r"tiny .*2 of 2 replicas")
            finally:
                grown.set()
            assert [one.result(PATIENCE) for one in asked] == [{200}] * 4
        up.until(r"tiny Ready True ScaledToZero")
        up.interrupt()
        assert up.end() == 0
    finally:
        up.kill()
