"""One container as a process of this machine: its own process group, its output line by line, its end.

Owns start, stop (SIGTERM to the process, SIGKILL to the group) and exit code. The process dies with its parent, however that
ends. Knows nothing of probes, restarts or status: that is `pod`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

Emit = Callable[[str], None]
_CHUNK = 64 * 1024  # bytes read at a time; a longer line is passed on in pieces
_PIPE_SECONDS = 2.0  # how long a process that left the group may hold our pipe open

# Runs in the child and becomes its program: asks the kernel for SIGKILL (9) when the parent ends (PR_SET_PDEATHSIG is 1, kept
# over exec), and ends if that has happened already. A preexec_fn would do the same but must not be used beside threads.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ContainerProcess:
    """A started process. `wait` ends when it has ended and nothing of its group is left."""

    def __init__(self, process: asyncio.subprocess.Process, output: BinaryIO, emit: Emit) -> None:
        self._process = process
        self._oom_kills = _oom_kills()
        self._killed = False
        self._pump = asyncio.create_task(_pump(output, emit))
        self._ended = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], emit: Emit) -> ContainerProcess:
        """Run `command`; each line that it writes goes to `emit`. Raises FileNotFoundError when there is no such program."""
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None:
            raise FileNotFoundError(f"no program {command[0]!r} on PATH")
        argv = [program, *command[1:]]
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv]
        # A pipe of our own: with asyncio's, `wait` would wait for all who hold it, and a left-over child may hold it for ever.
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return cls(process, os.fdopen(read_end, "rb", buffering=0), emit)

    async def wait(self) -> int:
        """The exit code as Kubernetes gives it: 128 + signal where a signal ended it."""
        return await asyncio.shield(self._ended)

    def was_oom_killed(self) -> bool:
        """It died of a SIGKILL that was not ours, and the kernel killed something for want of memory while it ran."""
        return self._process.returncode == -signal.SIGKILL and not self._killed and _oom_kills() > self._oom_kills

    async def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL to the group when it has not ended within `grace` seconds."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group, at once."""
        if not self._ended.done():
            self._killed = True
            _kill_group(self._process.pid)

    async def _watch(self) -> int:
        code = await self._process.wait()
        _kill_group(self._process.pid)  # what it started dies with it, as in a container
        await asyncio.wait({self._pump}, timeout=_PIPE_SECONDS)
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        return code if code >= 0 else 128 - code


async def _pump(output: BinaryIO, emit: Emit) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), output
    )
    rest = b""
    try:
        while chunk := await reader.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _CHUNK:
                lines.append(rest)
                rest = b""
            for line in lines:
                emit(line.decode(errors="replace").rstrip("\r"))
        if rest:
            emit(rest.decode(errors="replace"))
    finally:
        transport.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
