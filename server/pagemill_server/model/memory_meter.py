"""How much memory this process holds on its device, and the most that a piece of work takes on top of that.

On CPU the kernel's own count of resident pages, on a GPU torch's allocator. Used once, by `load`, before anything is served;
other threads of the process count as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"  # https://docs.kernel.org/filesystems/proc.html: clear_refs


class MemoryMeter(Protocol):
    """Bytes, or None where they can't be had."""

    def held(self) -> int | None: ...

    def peak(self, work: Callable[[], object]) -> int | None:
        """Do the work in any case; the most that was held during it, above what was held before."""
        ...


def make_meter(device: torch.device) -> MemoryMeter:
    return CudaMeter(device) if device.type == "cuda" else HostMeter()


class HostMeter:
    """Resident memory. `process` is a folder like /proc/self."""

    def __init__(self, process: Path = _PROCESS) -> None:
        self._process = process

    def held(self) -> int | None:
        """Without the pages of files: libraries come in as they are used."""
        give_back_unused()
        return self._status("RssAnon")

    def peak(self, work: Callable[[], object]) -> int | None:
        give_back_unused()
        try:
            (self._process / "clear_refs").write_text(_RESET_PEAK)
        except OSError:  # not every kernel or sandbox has it
            work()
            return None
        before = self._status("VmRSS")
        work()
        after = self._status("VmHWM")
        return None if before is None or after is None else max(0, after - before)

    def _status(self, name: str) -> int | None:
        with suppress(OSError):
            for line in (self._process / "status").read_text().splitlines():
                key, _, value = line.partition(":")
                if key == name:
                    return int(value.split()[0]) * 1024
        return None


class CudaMeter:
    """What torch's allocator gave out on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def held(self) -> int | None:
        return torch.cuda.memory_allocated(self._device)

    def peak(self, work: Callable[[], object]) -> int | None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def give_back_unused() -> None:
    """What was freed goes back to the system, or a later allocation from it would not be seen (glibc only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
