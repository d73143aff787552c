"""A model divided among processes behind its users' doors: the command and LLM. And how the server ends when a worker does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pagemill.failures import FailureReason, parse_termination
from pagemill_server import LLM, SamplingParams
from tests.server.api.running import until
from tests.server.test_start import environment
from tests.server.tiny import write_tiny_llama

PROMPTS = ["a prompt", "another one, somewhat longer than the first " * 3, "a prompt"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """One process's answers. In float32: rounded to bfloat16 between layers, as several processes do, near equals change places."""
    with LLM(str(folder), kv_cache_memory_bytes="4MiB", dtype="float32") as llm:
        return [result.outputs[0].text for result in llm.generate(PROMPTS, GREEDY)]


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    client: httpx.Client
    log: Path
    termination: Path

    def worker(self) -> int:
        """Its only child."""
        pid = self.process.pid
        children = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return int(children)


@contextmanager
def serving(folder: Path, place: Path) -> Iterator[Server]:
    log, termination = place / "log", place / "termination"
    command = [sys.executable, "-m", "pagemill_server", "--model", str(folder), "--port", "0"]
    command += ["--kv-cache-memory-bytes", "4MiB", "--kv-offloading-size", "0.002", "--tensor-parallel-size", "2"]
    command += ["--dtype", "float32"]
    environ = environment(PAGEMILL_TERMINATION_LOG=str(termination))
    with log.open("wb") as out, subprocess.Popen(command, env=environ, stdout=out, stderr=out) as process:
        try:
            until(lambda: "listening on " in log.read_text() or process.poll() is not None)
            url = log.read_text().split("listening on ")[1].split(",")[0]
            with httpx.Client(base_url=url, verify=False, timeout=60) as client:
                until(lambda: process.poll() is not None or client.get("/ready").status_code == 200, seconds=120)
                assert process.poll() is None, log.read_text()
                yield Server(process, client, log, termination)
        finally:
            process.kill()


def test_the_command_answers_as_one_process_and_stops_in_order(
    folder: Path, expected: list[str], tmp_path: Path
) -> None:
    with serving(folder, tmp_path) as server:
        body = {"prompt": PROMPTS, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        choices = server.client.post("/v1/completions", json=body).json()["choices"]
        assert [choice["text"] for choice in choices] == expected
        worker = server.worker()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
        assert not Path(f"/proc/{worker}").exists()
    assert "2 x 1 threads" in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("busy", [True, False], ids=["in a stream", "idle"])
def test_a_worker_that_dies_ends_the_server(folder: Path, tmp_path: Path, busy: bool) -> None:
    with serving(folder, tmp_path) as server:
        if busy:
            body = {"prompt": "x", "max_tokens": 8000, "stream": True, "ignore_eos": True}
            with server.client.stream("POST", "/v1/completions", json=body) as response:
                events = (line for line in response.iter_lines() if line)
                next(events)
                os.kill(server.worker(), signal.SIGKILL)
                *_, error, done = events
            assert done == "data: [DONE]"
            assert "error" in json.loads(error.removeprefix("data: "))
        else:
            os.kill(server.worker(), signal.SIGKILL)
        assert server.process.wait(120) == 1
    failure = parse_termination(server.termination.read_text())
    assert failure is not None
    assert failure.reason is FailureReason.ENGINE_FAILED
    assert "rank 1 of 2" in failure.message
    assert "SIGKILL" in failure.message


def test_llm_answers_as_one_process(folder: Path, expected: list[str]) -> None:
    with LLM(
        str(folder),
        dtype="float32",
        kv_cache_memory_bytes="4MiB",
        kv_offloading_size=0.002,
        tensor_parallel_size=2,
        block_size=4,
    ) as llm:
        assert [result.outputs[0].text for result in llm.generate(PROMPTS, GREEDY)] == expected
        again = llm.generate(PROMPTS, GREEDY)
    assert [result.outputs[0].text for result in again] == expected
    assert all(result.num_cached_tokens for result in again)
