"""What an error of CUDA means for a person: no memory left, a driver older than torch needs, or a device that failed. By its text.

Errors of torch, Triton, cuBLAS and cuDNN come as exceptions of one type with the driver's words in them, and out of another process
as words alone. Pure, without torch; docs/gpu.md has the matrix of versions. Called by `loading`, `engine_program`, `serve` and
`model/cuda_device`.
"""

from __future__ import annotations

import re

from pagemill.failures import Failure, FailureReason

# The oldest driver of each CUDA major version (Linux): "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility" in https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
OLDEST_DRIVERS = {12: "525", 13: "580"}
_STEP = 0.05  # of utilization, less at a time

_NO_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
)
_TOO_OLD = (
    "NVIDIA driver on your system is too old",
    "CUDA driver version is insufficient for CUDA runtime version",
    "cudaErrorInsufficientDriver",
    "the provided PTX was compiled with an unsupported toolchain",
    "cudaErrorUnsupportedPtxVersion",
)
_FAILED = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cudaError")
_HINTS = {
    "no kernel image is available": "this build of torch has no code for this GPU: docs/gpu.md says which GPUs it has code for",
    "forward compatibility was attempted on non supported HW": "a CUDA compatibility package is in use on a GPU that takes none: "
    "remove it or update the driver",
    "no CUDA-capable device is detected": "the container or CUDA_VISIBLE_DEVICES hides the GPU",
    "all CUDA-capable devices are busy or unavailable": "another process holds the GPU for itself (nvidia-smi: compute mode)",
    "CUDA unknown error": "often a driver that was updated without a restart of the machine",
}
_FOUND_VERSION = re.compile(r"found version (\d+)")


def classify(text: str, utilization: float | None = None, built_for: str | None = None) -> Failure | None:
    """The failure that an error's text tells of, or None where it is not one of CUDA's.

    `utilization` is --gpu-memory-utilization as it was, for a suggestion; `built_for` is torch.version.cuda.
    """
    if _has(text, _NO_MEMORY):
        return _no_memory(text, utilization)
    if _has(text, _TOO_OLD):
        found = _FOUND_VERSION.search(text)
        return too_old(built_for, None if found is None else int(found[1]), text)
    if _has(text, _FAILED):
        hint = next(
            (hint for words, hint in _HINTS.items() if words in text), "the node's kernel log (Xid) says what it was"
        )
        return Failure(FailureReason.CUDA_ERROR, f"the GPU failed: {_first_line(text)}: {hint}")
    return None


def too_old(built_for: str | None, driver_speaks: int | None, text: str = "") -> Failure:
    """A driver that torch's CUDA can't use. `driver_speaks` is the driver's version of CUDA as it tells it, 12020 for 12.2."""
    speaks = "" if driver_speaks is None else f" (this one speaks CUDA {version(driver_speaks)})"
    needed = OLDEST_DRIVERS.get(int(built_for.partition(".")[0])) if built_for else None
    if needed is None:
        needs = f"torch needs a newer one{speaks}"
    else:
        needs = f"torch is built for CUDA {built_for}, which needs driver {needed} or later{speaks}"
    said = f" [{_first_line(text)}]" if text else ""
    return Failure(
        FailureReason.DRIVER_TOO_OLD,
        f"the NVIDIA driver is too old: {needs}: update it, or use an image whose torch is built for an older CUDA{said}",
    )


def is_too_old(built_for: str, driver_speaks: int) -> bool:
    """By numbers: a driver runs what is built for any minor version of its own major one, and for older ones."""
    return driver_speaks // 1000 < int(built_for.partition(".")[0])


def version(number: int) -> str:
    """12020 → 12.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _no_memory(text: str, utilization: float | None) -> Failure:
    suggestion: dict[str, str | int | float] = {}
    lower = "--gpu-memory-utilization"
    if utilization is not None and (less := round(utilization - _STEP, 2)) > 0:
        suggestion["gpuMemoryUtilization"] = less
        lower += f" (to {less:g})"
    return Failure(
        FailureReason.CUDA_OUT_OF_MEMORY,
        f"the GPU has no memory left: lower {lower}, --max-num-batched-tokens or --max-num-seqs, and see in nvidia-smi whether "
        f"something else uses it [{_first_line(text)}]",
        suggestion,
    )


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _first_line(text: str) -> str:
    """What there is before advice on debugging."""
    return text.partition("\n")[0].partition(" If reserved but unallocated")[0].strip()[:600]
