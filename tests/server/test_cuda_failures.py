"""What people read when a GPU fails, by the real texts of torch, Triton and the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server import loading
from pagemill_server.cuda_failures import classify, is_too_old, too_old, version
from tests.server.tiny import write_tiny_llama

OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
    "1.25 GiB is free. Including non-PyTorch memory, this process has 77.88 GiB memory in use. Of the allocated memory "
    "74.11 GiB is allocated by PyTorch, and 2.95 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by "
    "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
ILLEGAL = (
    "AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be "
    "asynchronously reported at some other API call, so the stacktrace below might be incorrect."
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OOM, FailureReason.CUDA_OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: out of memory", FailureReason.CUDA_OUT_OF_MEMORY),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            FailureReason.CUDA_OUT_OF_MEMORY,
        ),
        ("RuntimeError: Triton Error [CUDA]: out of memory", FailureReason.CUDA_OUT_OF_MEMORY),
        (f"2 steps in a row failed, the last with {OOM}", FailureReason.CUDA_OUT_OF_MEMORY),
        (OLD, FailureReason.DRIVER_TOO_OLD),
        ("CUDA driver version is insufficient for CUDA runtime version", FailureReason.DRIVER_TOO_OLD),
        (
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            FailureReason.DRIVER_TOO_OLD,
        ),
        (ILLEGAL, FailureReason.CUDA_ERROR),
        ("RuntimeError: CUDA error: device-side assert triggered", FailureReason.CUDA_ERROR),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            FailureReason.CUDA_ERROR,
        ),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", FailureReason.CUDA_ERROR),
        (
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            FailureReason.CUDA_ERROR,
        ),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(): cudaErrorNoDevice", FailureReason.CUDA_ERROR),
    ],
)
def test_the_reason_is_found_in_the_text(text: str, reason: FailureReason) -> None:
    failure = classify(text)
    assert failure is not None
    assert failure.reason is reason


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "the engine's process (12) was ended by SIGKILL: the system's memory may have run out",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
        "",
    ],
)
def test_what_is_not_of_a_gpu_stays_as_it_is(text: str) -> None:
    assert classify(text) is None


def test_without_memory_it_says_what_to_lower() -> None:
    failure = classify(OOM, utilization=0.99)
    assert failure is not None
    assert failure.suggestion == {"gpuMemoryUtilization": 0.94}
    assert "--gpu-memory-utilization (to 0.94)" in failure.message
    assert "Tried to allocate 2.00 GiB" in failure.message
    assert "PYTORCH_CUDA_ALLOC_CONF" not in failure.message
    unknown = classify(OOM)
    assert unknown is not None
    assert unknown.suggestion == {}


def test_a_start_without_memory_has_a_reason_and_a_share_to_try(tmp_path: Path) -> None:
    files = inspect(write_tiny_llama(tmp_path))
    with pytest.raises(PagemillError) as caught, loading._out_of_memory(files, 0.99):
        raise RuntimeError(OOM)
    assert caught.value.failure.reason is FailureReason.CUDA_OUT_OF_MEMORY
    assert caught.value.failure.suggestion == {"gpuMemoryUtilization": 0.94}


def test_an_old_driver_is_told_with_both_versions() -> None:
    failure = classify(OLD, built_for="13.0")
    assert failure is not None
    assert (
        "torch is built for CUDA 13.0, which needs driver 580 or later (this one speaks CUDA 12.2)" in failure.message
    )
    assert "525" in too_old("12.8", 11040).message
    assert "newer" in too_old(None, None).message
    assert "newer" in too_old("99.1", None).message, "a version that nobody knows yet"


@pytest.mark.parametrize(
    ("built_for", "driver", "old"),
    [
        ("13.0", 12080, True),
        ("13.0", 13000, False),
        ("12.8", 12020, False),
        ("12.6", 13010, False),
        ("12.6", 11040, True),
    ],
)
def test_a_driver_runs_its_own_major_version_and_older_ones(built_for: str, driver: int, old: bool) -> None:
    assert is_too_old(built_for, driver) is old


def test_versions_are_read() -> None:
    assert [version(number) for number in (12020, 13000, 11080)] == ["12.2", "13.0", "11.8"]


def test_hints_say_what_to_look_at() -> None:
    failure = classify("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    assert failure is not None
    assert "no code for this GPU" in failure.message
    other = classify(ILLEGAL)
    assert other is not None
    assert "Xid" in other.message
    assert "\n" not in other.message
