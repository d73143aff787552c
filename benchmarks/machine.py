"""One line that says what a figure was measured on; no figure is printed without it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NOTABLE = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
    "bf16",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and software of a measurement."""

    cpu: str
    cores: int  # that this process may use
    flags: tuple[str, ...]
    memory_gib: float
    load: float  # runnable processes over the last minute, before the measurement: a busy machine shows
    system: str
    date: str
    versions: dict[str, str]
    commit: str

    def line(self) -> str:
        """For a table's head."""
        software = " ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.cpu}, {self.cores} cores ({' '.join(self.flags)}), {self.memory_gib:.0f} GiB, load {self.load:.1f}, "
            f"{self.system}, {self.date}, {software}, commit {self.commit}"
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    """This machine, now."""
    info = _cpu_info()
    known = info.get("flags", info.get("Features", "")).split()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        flags=tuple(flag for flag in NOTABLE if flag in known),
        memory_gib=pages / 1024**3,
        load=os.getloadavg()[0],
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        date=time.strftime("%Y-%m-%d"),
        versions={"python": platform.python_version()} | {name: _version(name) for name in ("pagemill", "torch")},
        commit=_commit(),
    )


def _cpu_info() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    root = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()
