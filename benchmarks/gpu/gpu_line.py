"""Which GPU a figure was measured on, beside `machine`'s line; and what is missing where there is none."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from pagemill_server.cuda_failures import OLDEST_DRIVERS
from pagemill_server.model.cuda_device import unusable

LEAST_GIB = 24  # holds 8 billion weights of 16 bits and a cache


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device and its software."""

    name: str
    memory_gib: float
    capability: str
    driver: str
    cuda: str  # that torch is built for
    triton: str
    vllm: str

    def line(self) -> str:
        return (
            f"{self.name}, {self.memory_gib:.0f} GiB, compute capability {self.capability}, driver {self.driver}, "
            f"CUDA {self.cuda}, triton {self.triton}, vllm {self.vllm}"
        )


def missing() -> str | None:
    """One line that says what is needed where no GPU can be used, or None."""
    failure = unusable()
    if failure is None:
        return None
    cuda = torch.version.cuda
    driver = OLDEST_DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None
    needs = f" with driver {driver} or later (torch {torch.__version__} is built for CUDA {cuda})" if driver else ""
    return f"needs an NVIDIA GPU of {LEAST_GIB} GiB or more{needs}: {failure.message}"


def describe() -> Gpu:
    """The current device."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        name=properties.name,
        memory_gib=properties.total_memory / 1024**3,
        capability=f"{properties.major}.{properties.minor}",
        driver=_driver(),
        cuda=str(torch.version.cuda),
        triton=_version("triton"),
        vllm=_version("vllm"),
    )


def _driver() -> str:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.stdout.splitlines()[0].strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
