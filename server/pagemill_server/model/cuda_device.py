"""Which GPU is computed on and in what, what of its memory is ours, and why a GPU can't be used, in words. Called by `device` and
`division`.

Importing this asks the driver nothing.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

import torch

from pagemill.endpoints import KERNEL_CACHE_ENV
from pagemill.failures import Failure, FailureReason, PagemillError
from pagemill.sizes import format_size
from pagemill_server import cuda_failures
from pagemill_server.config import ModelOptions

log = logging.getLogger(__name__)

_BFLOAT16_FROM = (8, 0)  # compute capability: Ampere
_TRITON_FROM = (7, 5)  # Turing, the oldest that a current torch has code for
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def is_chosen(options: ModelOptions) -> bool:
    """Whether a GPU is asked for, or is there and can compute this."""
    if options.device == "cuda":
        return True
    return options.device == "auto" and options.tensor_parallel_size == 1 and torch.cuda.is_available()


def choose(options: ModelOptions) -> tuple[torch.device, torch.dtype]:
    """The GPU, which is the current one from here on, and what is computed in. Raises PagemillError."""
    if options.tensor_parallel_size != 1:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"this version divides no model among GPUs, and {options.tensor_parallel_size} were asked for: set "
            "--tensor-parallel-size 1 (gpu.count), or --device cpu",
        )
    if options.quantization != "none":
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"weights of {options.quantization} are multiplied on a CPU alone in this version: leave --quantization out, or set "
            "--device cpu",
        )
    if (failure := unusable()) is not None:
        raise PagemillError(failure.reason, failure.message, failure.suggestion)
    keep_kernels(os.environ)
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)
    return device, dtype_for(
        options.dtype, torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device)
    )


def keep_kernels(environ: MutableMapping[str, str]) -> None:
    """Have Triton keep what it compiles where it can write: a claim may be for reading alone, or somebody else's."""
    asked = environ.get(KERNEL_CACHE_ENV)
    if asked is None or _is_writable(Path(asked)):
        return
    environ[KERNEL_CACHE_ENV] = instead = str(Path(tempfile.gettempdir()) / "triton")
    log.warning("%s %s can't be written to: compiled kernels are kept in %s", KERNEL_CACHE_ENV, asked, instead)


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def unusable() -> Failure | None:
    """Why no GPU can be used, or None."""
    built_for = torch.version.cuda
    if built_for is None:
        return Failure(
            FailureReason.INVALID_CONFIGURATION,
            f"torch {torch.__version__} has no CUDA: install a build that has, or set --device cpu",
        )
    if (speaks := driver_version()) is not None and cuda_failures.is_too_old(built_for, speaks):
        return cuda_failures.too_old(built_for, speaks)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        text = f"{type(error).__name__}: {error}"
        return cuda_failures.classify(text, built_for=built_for) or _no_gpu(text)
    return None


def driver_version(library: str = "libcuda.so.1") -> int | None:
    """The CUDA that the driver speaks, 12020 for 12.2; None without a driver.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html
    """
    number = ctypes.c_int()
    try:
        code = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return number.value if code == 0 else None


def _no_gpu(text: str) -> Failure:
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"there is no GPU that can be used here: run where there is one, or set --device cpu [{text.partition(chr(10))[0]}]",
    )


def dtype_for(asked: str, capability: tuple[int, int], name: str) -> torch.dtype:
    """bfloat16 for `auto` where the GPU has it, else float16. Raises PagemillError for what this GPU can't do."""
    shown = f"{name} (compute capability {capability[0]}.{capability[1]})"
    if capability < _TRITON_FROM:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"{shown} is too old: {_TRITON_FROM[0]}.{_TRITON_FROM[1]} or later is needed, or --device cpu",
        )
    if asked == "auto":
        return torch.bfloat16 if capability >= _BFLOAT16_FROM else torch.float16
    if asked not in DTYPES:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"dtype {asked!r} is not one of auto, {', '.join(DTYPES)}"
        )
    if asked == "bfloat16" and capability < _BFLOAT16_FROM:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"{shown} has no bfloat16: set --dtype float16, or leave it out"
        )
    return DTYPES[asked]


def memory(device: torch.device, utilization: float) -> int:
    """Bytes that the GPU has. Raises PagemillError where the share that is ours is not free."""
    free, total = torch.cuda.mem_get_info(device)
    if (failure := shortage(free, total, utilization)) is not None:
        raise PagemillError(failure.reason, failure.message, failure.suggestion)
    return total


def shortage(free: int, total: int, utilization: float) -> Failure | None:
    """Bytes; what others use, CUDA itself included, is not free."""
    wanted = int(total * utilization)
    if wanted <= free:
        return None
    most = math.floor(free / total * 100) / 100
    ways = f"set --gpu-memory-utilization to {most:g} at most, or " if most > 0 else ""
    return Failure(
        FailureReason.CUDA_OUT_OF_MEMORY,
        f"{utilization:g} of the GPU's {format_size(total)} would be {format_size(wanted)}, but {format_size(free)} is free: "
        f"{ways}end what else uses it (nvidia-smi)",
        {"gpuMemoryUtilization": most} if most > 0 else {},
    )
