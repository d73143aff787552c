"""A container's process: its lines, its end, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagemill_operator.cluster.local.process import ContainerProcess

FOREVER = "import time\nwhile True: time.sleep(1)"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def start(code: str) -> tuple[ContainerProcess, list[str], asyncio.Event]:
    lines, some = list[str](), asyncio.Event()

    def emit(line: str) -> None:
        lines.append(line)
        some.set()

    return await ContainerProcess.start(python(code), os.environ, emit), lines, some


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("pass", 0), ("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
async def test_exit_codes_are_kubernetes(code: str, exit_code: int) -> None:
    process, _, _ = await start(code)
    assert await process.wait() == exit_code
    assert not process.was_oom_killed()


async def test_lines_come_whole_from_both_streams_and_long_ones_in_pieces() -> None:
    process, lines, _ = await start(
        "import sys\n"
        "sys.stdout.write('one\\r\\ntwo\\n'); sys.stdout.flush()\n"
        "sys.stderr.write('three\\n'); sys.stderr.flush()\n"
        "sys.stdout.write('x' * 200_000 + '\\n' + 'no newline \\xff')\n"
    )
    await process.wait()
    assert lines[:3] == ["one", "two", "three"]
    assert "".join(lines[3:-1]) == "x" * 200_000
    assert lines[-1] == "no newline ÿ"


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await ContainerProcess.start(["no-such-program"], os.environ, print)


async def test_stop_asks_first_and_then_kills() -> None:
    gentle, lines, some = await start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\nwhile True: time.sleep(1)"
    )
    await some.wait()
    assert await gentle.stop(30) == 0
    assert lines == ["up", "bye"]
    deaf, _, some = await start(
        f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n{FOREVER}"
    )
    await some.wait()
    assert await deaf.stop(0.1) == 137
    assert await deaf.stop(0.1) == 137, "a second stop finds it ended"


async def test_what_it_started_ends_with_it() -> None:
    process, lines, some = await start(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {FOREVER!r}])\n"
        "print(child.pid, flush=True)\n"
    )
    assert await process.wait() == 0
    assert some.is_set()
    wait_until_gone(int(lines[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_it_dies_with_a_parent_that_is_killed() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from pagemill_operator.cluster.local.process import ContainerProcess\n"
        "async def main():\n"
        f"    code = 'import os; print(os.getpid(), flush=True)\\n' + {FOREVER!r}\n"
        "    command = [sys.executable, '-S', '-c', code]\n"
        "    say = lambda line: print(line, flush=True)\n"
        "    process = await ContainerProcess.start(command, os.environ, say)\n"
        "    await process.wait()\n"
        "asyncio.run(main())\n"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
    wait_until_gone(child)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} still runs"
        time.sleep(0.01)
