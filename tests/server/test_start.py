"""The command as a process: a model that can't be served ends it before torch is imported; a signal ends it in order."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pagemill.failures import FailureReason, parse_termination
from tests.pagemill.sample_encoders import POOLING, TRANSFORMER, bert_json, write_sentence_files
from tests.server.api.running import until
from tests.server.tiny import write_tiny_llama

REPOSITORY = Path(__file__).parents[2]
# Runs the command and then says whether anything imported torch.
PROBE = """
import sys
from pagemill_server.cli import serve
code = serve(sys.argv[1:])
print("torch imported" if "torch" in sys.modules else "no torch")
sys.exit(code)
"""


def environment(**more: str) -> dict[str, str]:
    places = os.pathsep.join(str(REPOSITORY / part) for part in (".", "server", "kernels"))
    return os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"} | more


def missing(folder: Path) -> Path:
    return folder / "nothing"


def truncated(folder: Path) -> Path:
    weights = write_tiny_llama(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return folder


def truncated_gguf(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\x05")
    return folder / "model.gguf"


def pickled(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": 1}))
    return folder


def foreign(folder: Path) -> Path:
    return write_tiny_llama(folder, architectures=["MambaForCausalLM"], model_type="mamba")


def encoder(folder: Path) -> Path:
    """One whose vectors go through a layer that isn't computed here."""
    write_tiny_llama(folder)
    (folder / "config.json").write_text(json.dumps(bert_json()))
    return write_sentence_files(folder, modules=[TRANSFORMER, POOLING, {"path": "2_Dense", "type": "models.Dense"}])


def without_tokenizer(folder: Path) -> Path:
    (write_tiny_llama(folder) / "tokenizer.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (missing, FailureReason.MODEL_NOT_FOUND),
        (truncated, FailureReason.MODEL_TRUNCATED),
        (truncated_gguf, FailureReason.MODEL_TRUNCATED),
        (pickled, FailureReason.UNSAFE_MODEL_FORMAT),
        (foreign, FailureReason.UNSUPPORTED_ARCHITECTURE),
        (encoder, FailureReason.UNSUPPORTED_ARCHITECTURE),
        (without_tokenizer, FailureReason.UNSUPPORTED_TOKENIZER),
    ],
)
def test_a_model_that_cannot_be_served(tmp_path: Path, make: Callable[[Path], Path], reason: FailureReason) -> None:
    log = tmp_path / "termination"
    command = [sys.executable, "-c", PROBE, str(make(tmp_path / "model")), "--port", "0"]
    done = subprocess.run(
        command, env=environment(PAGEMILL_TERMINATION_LOG=str(log)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == "no torch\n"
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"pagemill serve: {reason}: ")
    failure = parse_termination(log.read_text())
    assert failure is not None
    assert (failure.reason, f"pagemill serve: {reason}: {failure.message}") == (reason, lines[0])


def test_a_port_in_use(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(folder), "--port", port],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (1, "no torch\n")
    assert done.stderr.splitlines()[-1].startswith(f"pagemill serve: AddressInUse: port {port} on 127.0.0.1 is in use")


def test_from_start_to_sigterm(tmp_path: Path) -> None:
    """Health while it loads, then an answer, then exit code 0; prompts and answers are not in the log."""
    folder = write_tiny_llama(tmp_path / "model")
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pagemill_server", "--model", str(folder), "--port", "0"]
    command += ["--kv-cache-memory-bytes", "4MiB", "--served-model-name", "tiny"]
    with log.open("wb") as out, subprocess.Popen(command, env=environment(), stdout=out, stderr=out) as process:
        try:
            until(lambda: "listening on " in log.read_text() or process.poll() is not None)
            url = log.read_text().split("listening on ")[1].split(",")[0]
            with httpx.Client(base_url=url, verify=False, timeout=30) as client:
                early = client.get("/ready")
                assert client.get("/health").status_code == 200
                assert (early.status_code, early.json()["ready"]) == (503, False)  # torch alone takes longer than this
                until(lambda: client.get("/ready").status_code == 200)
                body = {"prompt": "a secret prompt", "max_tokens": 2}
                assert client.post("/v1/completions", json=body).json()["model"] == "tiny"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    text = log.read_text()
    assert "loading weights: 100%" in text
    (line,) = [json.loads(line) for line in text.splitlines() if line.startswith("{") and "/v1/completions" in line]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert "secret" not in text
    assert "Traceback" not in text
