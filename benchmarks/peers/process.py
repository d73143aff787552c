"""Starts a peer's process with its log in a file, and ends it with all that it started. Used by every adapter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_GRACE = 20.0  # seconds to end by itself
# Compiled Python files are kept, as an installed package has them: else each start compiles all of them.
_DROPPED = ("PYTHONDONTWRITEBYTECODE",)


@contextmanager
def started(
    name: str, command: Sequence[str], environ: Mapping[str, str] | None = None, *, pipes: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process, in a group of its own, and where its log is. `pipes`: its stdin and stdout are pipes, only stderr is logged."""
    with tempfile.NamedTemporaryFile(prefix=f"bench-{name}-", suffix=".log", delete=False) as file:
        log = Path(file.name)
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    with (
        log.open("wb") as out,
        subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else out,
            stderr=out,
            env=kept | dict(environ or {}),
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process, log
        finally:
            _end(process)


def end_cleanly() -> None:
    """Let SIGTERM unwind the program, as Ctrl-C does: what was started has a group of its own, and would go on without us."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def tail(log: Path, lines: int = 12) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=_GRACE)
            break
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):  # what outlived its leader
        os.killpg(process.pid, signal.SIGKILL)
