"""Waits for what was started, and says what was waited for when it does not come.

Called by all that start something.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from testbed.errors import NotReady


def wait_until(
    what: str,
    is_ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Callable[[], Path],
    seconds: float = 60,
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
