"""How far a preflight is: for its log, for whoever asks its port as a replica's /ready, and for a clock that ends one that stands.

Nothing but a download takes long. Owned by `preflight_command`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pagemill.endpoints import READY_PATH
from pagemill.failures import Failure, FailureReason
from pagemill.sizes import format_size

_LOOK = 1.0  # seconds


class Progress:
    """Called with bytes done and bytes in all; a call with the same numbers says that something moves (a checksum)."""

    def __init__(self, label: str) -> None:
        self.done, self.total = 0, 0
        self._label, self._shown = label, -1
        self._moved = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self.moved()
        if (step := self.percent // 10) != self._shown:
            self._shown = step
            say(f"{self._label}: {self.percent}%, {format_size(done)} of {format_size(total)}")

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0

    def moved(self) -> None:
        """Something has."""
        self._moved = time.monotonic()

    def stands(self, seconds: float) -> bool:
        """Whether nothing has moved for that long."""
        return time.monotonic() - self._moved > seconds

    def body(self) -> dict[str, object]:
        """As a replica's /ready says it while it loads."""
        phase = "Downloading" if self.total else "Starting"
        sizes = {"bytesLoaded": self.done, "bytesTotal": self.total}
        return {"ready": False, "phase": phase, "percent": self.percent, **sizes, "capacity": None}


def say(line: str) -> None:
    """To the log, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(progress: Progress, port: int) -> None:
    """Answer /ready from now on. A port that can't be had is no reason to fail: nothing but the percentage is missing."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            body = json.dumps(progress.body() if self.path == READY_PATH else {}).encode()
            self.send_response(503 if self.path == READY_PATH else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # the operator asks every few seconds

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        say(f"port {port} can't be had ({error.strerror or error}): nobody is told how far this is")
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()


def end_when_it_stands(progress: Progress, seconds: float, folder: Path, end: Callable[[Failure], None]) -> None:
    """Watch from now on. Another fetch of the same model, whose lock we wait for, writes into `folder`: that is progress too."""

    def watch() -> None:
        size = -1
        while True:
            time.sleep(min(_LOOK, seconds))
            if (found := _size(folder)) != size:
                size = found
                progress.moved()
            if progress.stands(seconds):
                end(
                    Failure(
                        FailureReason.LOAD_STALLED,
                        f"the download of {folder.name} has not moved for {seconds:g} s ({progress.percent}% of it are "
                        "there): check the hub and the cache's disk, or raise startup.timeoutSeconds",
                    )
                )
                return

    threading.Thread(target=watch, daemon=True).start()


def _size(folder: Path) -> int:
    """Bytes in its files."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return 0
