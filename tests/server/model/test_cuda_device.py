"""Which GPU, in what, and how much of its memory; and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import ModelOptions
from pagemill_server.model import cuda_device

GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "capability", "dtype"),
    [
        ("auto", (9, 0), torch.bfloat16),
        ("auto", (8, 0), torch.bfloat16),
        ("auto", (7, 5), torch.float16),
        ("float16", (9, 0), torch.float16),
        ("float32", (7, 5), torch.float32),
        ("bfloat16", (8, 9), torch.bfloat16),
    ],
)
def test_auto_is_what_the_gpu_does_best(asked: str, capability: tuple[int, int], dtype: torch.dtype) -> None:
    assert cuda_device.dtype_for(asked, capability, "GPU") is dtype


@pytest.mark.parametrize(
    ("asked", "capability", "words"),
    [
        ("bfloat16", (7, 5), "has no bfloat16"),
        ("auto", (7, 0), r"compute capability 7\.0\) is too old"),
        ("int4", (9, 0), "not one of auto"),
    ],
)
def test_what_a_gpu_cant_do_is_refused(asked: str, capability: tuple[int, int], words: str) -> None:
    with pytest.raises(PagemillError, match=words) as caught:
        cuda_device.dtype_for(asked, capability, "Tesla")
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_a_share_that_is_free_is_taken() -> None:
    assert cuda_device.shortage(free=72 * GIB, total=80 * GIB, utilization=0.9) is None


def test_a_share_that_is_not_free_is_told_with_what_is() -> None:
    failure = cuda_device.shortage(free=int(78.5 * GIB), total=80 * GIB, utilization=0.99)
    assert failure is not None
    assert failure.reason is FailureReason.CUDA_OUT_OF_MEMORY
    assert failure.suggestion == {"gpuMemoryUtilization": 0.98}
    assert "78.5 GiB is free" in failure.message
    share = failure.suggestion["gpuMemoryUtilization"]
    assert isinstance(share, float)
    assert cuda_device.shortage(int(78.5 * GIB), 80 * GIB, share) is None, "what is suggested works"


def test_where_nothing_is_free_nothing_is_suggested() -> None:
    failure = cuda_device.shortage(free=1, total=80 * GIB, utilization=0.9)
    assert failure is not None
    assert failure.suggestion == {}


def test_several_gpus_are_refused_in_one_line() -> None:
    options = ModelOptions("m", ("m",), device="cuda", tensor_parallel_size=2)
    with pytest.raises(PagemillError, match="divides no model among GPUs"):
        cuda_device.choose(options)


def test_weights_of_int8_are_refused_in_one_line() -> None:
    with pytest.raises(PagemillError, match="int8 are multiplied on a CPU alone"):
        cuda_device.choose(ModelOptions("m", ("m",), device="cuda", quantization="int8"))


def test_cpu_is_never_a_gpu() -> None:
    assert not cuda_device.is_chosen(ModelOptions("m", ("m",), device="cpu"))
    assert cuda_device.is_chosen(ModelOptions("m", ("m",), device="cuda"))


def test_compiled_kernels_go_where_they_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "models" / ".triton")}
    cuda_device.keep_kernels(environ)
    assert environ == {"TRITON_CACHE_DIR": str(tmp_path / "models" / ".triton")}
    assert (tmp_path / "models" / ".triton").is_dir()
    environ = {"TRITON_CACHE_DIR": str(file / ".triton")}  # no folder can be there
    cuda_device.keep_kernels(environ)
    assert environ["TRITON_CACHE_DIR"].endswith("/triton")
    assert Path(environ["TRITON_CACHE_DIR"]).parent.is_dir()
    unset: dict[str, str] = {}
    cuda_device.keep_kernels(unset)
    assert unset == {}


def test_an_old_driver_is_told_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "driver_version", lambda: 11040)
    failure = cuda_device.unusable()
    if torch.version.cuda is None:
        pytest.skip("this torch is built without CUDA: `pip install torch` brings one that has it")
    assert failure is not None
    assert failure.reason is FailureReason.DRIVER_TOO_OLD
    assert f"built for CUDA {torch.version.cuda}" in failure.message
    assert "speaks CUDA 11.4" in failure.message


def test_without_a_driver_there_is_no_version() -> None:
    assert cuda_device.driver_version("libno-such-driver.so.1") is None
    assert cuda_device.driver_version("libc.so.6") is None, "a library that isn't the driver"


@pytest.mark.gpu
def test_the_driver_says_which_cuda_it_speaks() -> None:
    version = cuda_device.driver_version()
    assert version is not None
    assert version >= 12000


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so() -> None:
    assert not cuda_device.is_chosen(ModelOptions("m", ("m",)))
    with pytest.raises(PagemillError, match="set --device cpu") as caught:
        cuda_device.choose(ModelOptions("m", ("m",), device="cuda"))
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION
