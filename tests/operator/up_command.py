"""`pagemill up` in a process of its own, and what the addresses that it says answer."""

from __future__ import annotations

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
import urllib.request
from pathlib import Path
from typing import Any

import pytest

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
