"""`pagemill up` as a person runs it: the command in a process of its own, with the real server behind it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemill_operator import commands

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PATIENCE = 600.0  # seconds


def manifest(name: str, model: str = MODEL, **spec: Any) -> str:
    body = {"model": model, "accelerator": "cpu", "maxModelLen": 512, "engine": {"kvCacheGiB": 0.125}, **spec}
    head = {"apiVersion": "pagemill.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": name}}
    return json.dumps({**head, "spec": body}) + "\n"


class Command:
    """A running `pagemill up`; `lines` are what it has printed, as far as a test has read."""

    def __init__(self, file: Path, *flags: str) -> None:
        self.port = free_ports(3)
        command = [sys.executable, "-m", "pagemill", "up", "-f", str(file), "--port", str(self.port), *flags]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        )
        self._came: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.lines: list[str] = []

    def until(self, pattern: str) -> str:
        """Read on until a line matches; fails with all of them where none does."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no {pattern!r} in:\n" + "\n".join(self.lines)
            self.lines.append(line)
            if re.search(pattern, line):
                return line

    def until_gone(self, pid: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while pid in self.servers():
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.01)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the end, and see that no server outlives it."""
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert not servers_of(self._process.pid)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def servers(self) -> list[int]:
        return servers_of(self._process.pid)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._came.put(line.rstrip("\n"))
        self._came.put(None)


def servers_of(pid: int) -> list[int]:
    """The processes whose parent is or was `pid`, by the launcher's argument that names it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue
        if f"\nPPid:\t{pid}\n" in status and "\nState:\tZ" not in status:
            found.append(int(folder.name))
    return found


def free_ports(count: int) -> int:
    """The first of some ports in a row that are free."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first


def complete(port: int, tokens: int) -> str:
    """The text of a streamed completion, which must have come whole: it ends by length, with all its tokens."""
    body = {"model": MODEL, "prompt": "The sea", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps({**body, "stream_options": {"include_usage": True}}).encode(),
        {"Content-Type": "application/json"},
    )
    events = []
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        for line in response:
            text = line.decode().strip().removeprefix("data: ")
            if text and text != "[DONE]":
                events.append(json.loads(text))
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[-1]["finish_reason"] == "length", choices[-1]
    assert events[-1]["usage"]["completion_tokens"] == tokens
    return "".join(choice["text"] for choice in choices)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deployments.yaml"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            manifest("llm", repliicas=1, maxModelLen="x"),
            ["spec.maxModelLen: must be an integer", "spec.repliicas: unknown field"],
        ),
        (
            manifest("llm", model="pvc://claim/path"),
            ["llm: spec.model: pvc://claim/path can only be mounted by a cluster"],
        ),
        ("", ["holds no LLMDeployment"]),
    ],
)
def test_a_wrong_file_is_a_line_a_problem(
    file: Path, text: str, problems: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert commands.up(["-f", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(problems)
    for problem in problems:
        assert any(line.startswith(f"pagemill up: {file}") and problem in line for line in lines), lines


def test_a_taken_port_is_said_before_anything_starts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(manifest("llm"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert commands.up(["-f", str(file), "--port", str(port)]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"pagemill up: port {port} for llm is not free: choose another with --port\n"
    assert captured.out == ""


def test_a_missing_model_is_in_the_status_and_the_front_says_when_to_come_back(file: Path, tmp_path: Path) -> None:
    file.write_text(manifest("llm", model=str(tmp_path / "no-model")))
    up = Command(file, "--models", str(tmp_path))
    try:
        up.until(r"llm Degraded True ModelNotFound: .*no-model")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{up.port}/version", timeout=10)
        with caught.value as answer:
            assert (answer.code, answer.headers["Retry-After"]) == (503, "5")
        up.interrupt()
        assert up.end() == 0
    finally:
        up.kill()


@pytest.mark.parametrize("nohup", [False, True], ids=["plain", "nohup"])
def test_a_closed_terminal_drains_and_under_nohup_it_serves_on(file: Path, tmp_path: Path, nohup: bool) -> None:
    """Once the terminal is closed every write to it fails: nothing of that may cut what is served."""
    absent = str(tmp_path / "no-model")
    file.write_text(manifest("llm", model=absent))
    port = free_ports(2)
    command = [sys.executable, "-m", "pagemill", "up", "-f", str(file), "--port", str(port)]
    if nohup:
        command = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]
    up = subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL, *command], stdout=subprocess.PIPE)
    assert up.stdout is not None
    with up, up.stdout:
        try:
            pid = int(up.stdout.readline())
            if nohup:
                file.write_text(manifest("llm", model=absent) + "---\n" + manifest("second", model=absent))
                until_it_answers(port + 1)  # the edit is taken over, with lines that nobody can read
                os.kill(pid, signal.SIGTERM)
            assert up.wait(PATIENCE) == 0
            assert not servers_of(pid)
        finally:
            up.kill()


# Runs a command on a terminal of its own, closes that once the command says that the model is missing, ends with its exit code.
ON_A_TERMINAL = """
import os, pty, signal, sys
pid, terminal = pty.fork()
if not pid:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
while b"Degraded True ModelNotFound" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
print(pid, flush=True)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def until_it_answers(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=10)
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nobody answers on {port}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Path]]:
    """One deployment of the real model, Ready; the tests below go on from each other's state, in order."""
    file = tmp_path_factory.mktemp("up") / "deployments.yaml"
    file.write_text(manifest("first", rollout={"strategy": "Surge"}))
    up = Command(file)
    try:
        yield up, file
    finally:
        up.kill()


@pytest.mark.model
class TestWithTheModel:
    def test_it_gets_ready_and_answers(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        line = up.until("answers at")
        assert line.endswith(f"first answers at http://127.0.0.1:{up.port}/v1")
        said = "\n".join(up.lines)
        for pattern in (
            "first Ready False ",
            r"first-0 \| .*loading weights: 100%",
            "first Ready True Serving",
            "first MemoryFit True Fits",
        ):
            assert re.search(pattern, said), pattern
        assert complete(up.port, 8)

    def test_its_page_opens_with_the_address_that_is_said(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        address, _, token = page_of(up.until("first shows its engine at")).partition("#token=")
        with urllib.request.urlopen(address, timeout=10) as response:
            assert b"<title>Pagemill</title>" in response.read()
        assert state_of_engine(address, token)["server"]["phase"] == "Serving"
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            state_of_engine(address, token + "x")
        caught.value.close()

    def test_a_wrong_edit_is_said_and_the_old_one_runs_on(self, running: tuple[Command, Path]) -> None:
        up, file = running
        before = up.servers()
        file.write_text(manifest("first", replicas="two"))
        up.until(r"spec.replicas: must be an integer")
        up.until("the edit is not applied")
        complete(up.port, 4)
        assert up.servers() == before

    def test_an_edit_rolls_out_without_a_failed_request(self, running: tuple[Command, Path]) -> None:
        up, file = running
        (before,) = up.servers()
        over = threading.Event()

        def ask() -> int:
            asked = 0
            while not over.is_set():
                complete(up.port, 4)
                asked += 1
            return asked

        with concurrent.futures.ThreadPoolExecutor() as pool:
            asking = pool.submit(ask)
            try:
                file.write_text(manifest("first", maxModelLen=256, rollout={"strategy": "Surge"}))
                up.until("has changed and is applied")
                up.until("first Progressing True ")
                up.until("first Progressing False Settled")
            finally:
                over.set()
            assert asking.result() > 0
        up.until(r"first-0 \| .*stopped")
        up.until_gone(before)
        assert len(up.servers()) == 1
        new_pages = [line for line in up.lines if "first shows its engine at" in line][1:]
        assert len(new_pages) == 1, "the page of the replica that came in its place"
        address, _, token = page_of(new_pages[0]).partition("#token=")
        assert state_of_engine(address, token)["server"]["max_model_len"] == 256
        with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/v1/models", timeout=10) as response:
            assert json.load(response)["data"][0]["max_model_len"] == 256

    def test_a_hot_field_is_taken_over_by_the_server_that_runs(self, running: tuple[Command, Path]) -> None:
        up, file = running
        before = up.servers()
        pages = [line for line in up.lines if "first shows its engine at" in line]
        address, _, token = page_of(pages[-1]).partition("#token=")
        spec: dict[str, Any] = {"maxModelLen": 256, "rollout": {"strategy": "Surge"}}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream = pool.submit(complete, up.port, 200)
            wait_for_running(up.port, 1)
            file.write_text(manifest("first", **spec, schedulingPolicy="fair", scheduling={"weights": {"a": 2}}))
            deadline = time.monotonic() + PATIENCE
            while config_of(address, token)["policy"] != "fair":
                assert time.monotonic() < deadline, "the policy stays as it was"
                time.sleep(0.05)
            assert stream.result()
        assert config_of(address, token)["weights"] == {"a": 2}
        assert up.servers() == before

    def test_a_second_deployment_in_the_file_has_the_next_port(self, running: tuple[Command, Path]) -> None:
        up, file = running
        spec: dict[str, Any] = {"maxModelLen": 256, "rollout": {"strategy": "Surge"}}
        file.write_text(manifest("first", **spec) + "---\n" + manifest("second"))
        assert up.until("answers at").endswith(f"second answers at http://127.0.0.1:{up.port + 1}/v1")
        complete(up.port + 1, 4)
        file.write_text(manifest("first", **spec))
        up.until(r"second-0 \| .*stopped")
        complete(up.port, 4)

    def test_ctrl_c_lets_an_open_stream_finish(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        with concurrent.futures.ThreadPoolExecutor() as pool:
            streams = [pool.submit(complete, up.port, 240) for _ in range(4)]
            wait_for_running(up.port, 4)
            up.interrupt()
            up.until(r"draining \d replica")
            for stream in streams:
                assert stream.result()
        assert up.end() == 0


def page_of(line: str) -> str:
    return line.partition(" shows its engine at ")[2]


def config_of(address: str, token: str) -> dict[str, Any]:
    """The settings in force on a replica."""
    request = urllib.request.Request(f"{address}config", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        found: dict[str, Any] = json.load(response)["config"]
    return found


def state_of_engine(address: str, token: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{address}debug/blocks", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        found: dict[str, Any] = json.load(response)
    return found


def wait_for_running(port: int, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            found = re.search(r"^vllm:num_requests_running\{[^}]*\} ([\d.]+)$", response.read().decode(), re.MULTILINE)
        if found and float(found[1]) >= count:
            return
        time.sleep(0.05)
    pytest.fail(f"never {count} requests at once")


@pytest.mark.model
def test_a_second_ctrl_c_ends_it_now(file: Path) -> None:
    file.write_text(manifest("llm", maxModelLen=2048))
    up = Command(file)
    try:
        up.until("answers at")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream = pool.submit(complete, up.port, 2000)  # far more than come before it is cut
            wait_for_running(up.port, 1)
            up.interrupt()
            up.until("draining 1 replica")
            up.interrupt()
            assert up.end() == 0
            with pytest.raises((OSError, AssertionError)):
                stream.result()
    finally:
        up.kill()
