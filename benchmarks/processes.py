"""What processes of this machine did: memory and processor time of a tree of them, and of everybody. From /proc; zeros elsewhere.

Used by `quiet` and by what starts servers for a measurement.
"""

from __future__ import annotations

import os
from pathlib import Path

_HZ = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        found.append(parent)
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            todo += [int(child) for child in _read(children).split()]
    return found


def peak_bytes(pid: int) -> int:
    """Most memory that the processes of a tree ever held, each at its own peak, files that they map included."""
    total = 0
    for member in tree(pid):
        for line in _read(Path(f"/proc/{member}/status")).splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pid: int) -> float:
    """Processor time of a tree, and of those of its processes that have ended and were waited for."""
    total = 0
    for member in tree(pid):
        fields = _read(Path(f"/proc/{member}/stat")).rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / _HZ


def machine_seconds() -> tuple[float, float]:
    """Processor time of the whole machine: taken by processes, and by its host ("steal")."""
    fields = [int(field) for field in _read(Path("/proc/stat")).partition("\n")[0].split()[1:9]]
    if not fields:
        return 0.0, 0.0
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq) / _HZ, steal / _HZ


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
