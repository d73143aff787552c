"""Starts `pagemill serve` on a free port of this machine for a measurement, and stops it afterwards.

Shows loading progress, keeps the server's log in a file, and tells how long the start took and how much memory it used.
Used by `serve` when no address is given.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagemill.endpoints import READY_PATH

PATIENCE = 600.0  # seconds until ready
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """The server did not start; the message holds the end of its log."""


@dataclass(slots=True)
class OwnServer:
    """A running server. `peak_bytes` is known once it has stopped."""

    base_url: str
    log: Path
    pid: int = 0
    start_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def started(model: str, flags: Sequence[str]) -> Iterator[OwnServer]:
    """Serve `model` with further flags of `pagemill serve` while the block runs."""
    port = _free_port()
    with tempfile.NamedTemporaryFile(prefix="pagemill-bench-", suffix=".log", delete=False) as file:
        log = Path(file.name)
    server = OwnServer(f"http://127.0.0.1:{port}", log)
    command = [sys.executable, "-m", "pagemill", "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags]
    environ = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # spinning threads would take the client's core
    began = time.perf_counter()
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as process:
        server.pid = process.pid
        try:
            _wait_until_ready(server, process, began)
            server.start_s = time.perf_counter() - began
            yield server
            server.peak_bytes = _peak(process.pid)
        finally:
            _stop(process)


def _wait_until_ready(server: OwnServer, process: subprocess.Popen[bytes], began: float) -> None:
    shown = ""
    while time.perf_counter() - began < PATIENCE:
        if process.poll() is not None:
            raise ServerError(f"the server ended with exit code {process.returncode}:\n{_tail(server.log)}")
        ready, phase = _ask(server.base_url + READY_PATH)
        if phase != shown:
            sys.stderr.write(f"server: {phase}\n")
            shown = phase
        if ready:
            return
        time.sleep(0.1)
    raise ServerError(f"the server was not ready after {PATIENCE:.0f} s:\n{_tail(server.log)}")


def readiness(url: str) -> dict[str, Any]:
    """What `/ready` says; nothing while nobody listens."""
    try:
        with _DIRECT.open(url, timeout=5) as response:
            told = response.read()
    except urllib.error.HTTPError as error:
        with error:
            told = error.read() or b"{}"
    except OSError:
        return {}
    found: dict[str, Any] = json.loads(told)
    return found


def _ask(url: str) -> tuple[bool, str]:
    body = readiness(url)
    if not body:
        return False, "starting"
    percent = body.get("percent", 0) // 10 * 10
    return bool(body.get("ready")), f"{body.get('phase', 'starting')} {percent}%"


def _peak(pid: int) -> int:
    """Most memory that the process ever held, bytes; 0 where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
