"""Waits for what was started or asked for, and says what was waited for when it does not come."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from testbed.errors import NotReady


def wait_until(
    what: str,
    is_ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Callable[[], Path],
    seconds: float = 300,
) -> None:
    """Poll `is_ready`; raise NotReady with the log's last lines if the process ends or time is up."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            reason = "took too long" if ended is None else f"ended with {ended}"
            last = "\n".join(log().read_text(errors="replace").splitlines()[-15:])
            raise NotReady(f"{what} {reason}; {log()} ends with\n{last}")
        time.sleep(0.05)


def await_port(
    what: str, address: str, port: int, process: subprocess.Popen[bytes], log: Callable[[], Path], seconds: float = 300
) -> None:
    """Until somebody listens there; NotReady as `wait_until` raises it."""

    def answers() -> bool:
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(what, answers, process, log, seconds)


Found = TypeVar("Found")


def eventually(what: str, look: Callable[[], Found | None], seconds: float = 300) -> Found:
    """What `look` finds as soon as it finds something; AssertionError, with what it last saw, if it never does.

    `look` returns None while there is nothing yet; it may raise LookupError with what it saw instead.
    """
    deadline = time.monotonic() + seconds
    saw = "nothing"
    while time.monotonic() < deadline:
        try:
            found = look()
            if found is not None:
                return found
        except LookupError as error:
            saw = str(error)
        except subprocess.CalledProcessError as error:
            saw = str(error.stderr)
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s; last seen: {saw}")
