"""`pagemill up` as a person runs it, where nothing can be served: what it says, refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pagemill_operator import commands
from tests.operator.up_command import PATIENCE, Command, free_ports, manifest, servers_of


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
