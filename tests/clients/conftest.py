"""What others wrote, run against a real server of ours: their programs in an environment of their own, the real models behind it.

`make .venv-clients/bin/.installed` makes that environment (extra `clients`); `make test` does so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.real_model import ENCODER, NAME, real_encoder, real_model

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-clients" / "bin"
QUIET = {  # what these packages would send home, or fetch; there may be no network
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}

Run = Callable[..., str]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a program of the clients' environment and gives what it printed; a failure shows all of it."""
    if not (CLIENTS / ".installed").is_file():
        pytest.skip("needs the environment of the clients: make .venv-clients/bin/.installed")

    def call(program: str, *arguments: str, cwd: Path = ROOT, ok: bool = True, timeout: float = 600) -> str:
        command = [str(CLIENTS / program), *arguments]
        environment = os.environ | QUIET
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert not ok or done.returncode == 0, done.stdout
        return done.stdout

    return call


@pytest.fixture(scope="session")
def generating() -> Iterator[str]:
    """The address, with /v1, of a server of SmolLM2, greedy unless it is asked for something else: the same in every run. Its
    weights are not rounded to 16 bits, as transformers' are not."""
    real_model()
    flags = ("--dtype", "float32", "--max-model-len", "1024", "--override-generation-config", '{"temperature": 0}')
    with served(NAME, *flags) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="session")
def embedding() -> Iterator[str]:
    """The same of all-MiniLM-L6-v2."""
    real_encoder()
    with served(ENCODER) as url:
        yield f"{url}/v1"


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The address of `python -m pagemill_server`, as a process of its own, once it is ready."""
    command = [sys.executable, "-m", "pagemill_server", "--model", *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=_environment()) as server:
        try:
            assert server.stderr is not None
            said, url = [], ""
            for line in server.stderr:
                said.append(line)
                if found := re.search(r"listening on (http://\S+?),", line):
                    url = found[1]
                if "ready: " in line:
                    break
            assert url, "".join(said)
            assert server.poll() is None, "".join(said)
            _drain(server)
            yield url
        finally:
            server.terminate()
            server.wait(60)


def _environment() -> dict[str, str]:
    places = os.pathsep.join(str(ROOT / part) for part in (".", "server", "kernels"))
    return os.environ | {"PYTHONPATH": places, "OMP_WAIT_POLICY": "PASSIVE"}


def _drain(server: subprocess.Popen[str]) -> None:
    """Its log is read on, so that it never waits for a reader."""
    threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
