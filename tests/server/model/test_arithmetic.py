"""In what is computed and what weights are kept in, by what was asked and what the machine has: tables."""

from __future__ import annotations

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill_kernels.native import library
from pagemill_server.model import native_kernels
from pagemill_server.model.arithmetic import Arithmetic, Machine, choose
from pagemill_server.model.device import Placement

AVX2 = Machine("avx2", "AuthenticAMD")
AVX512 = Machine("avx512", "GenuineIntel")
BF16 = Machine("avx512_bf16", "GenuineIntel")  # as where a processor's tiles are refused, or not wanted
ZEN = Machine("avx512_bf16", "AuthenticAMD")
AMX = Machine("amx_bf16", "GenuineIntel")
TORCH = Machine(None, "GenuineIntel")
NARROW, SLOWER, WIDE = "the kernels' vectors have no bfloat16", "vectors multiply bfloat16 no faster", "torch computes"
TILES, VECTORS = "tiles multiply it fastest", "vectors multiply it fastest"


@pytest.mark.parametrize("kept", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("machine", "why"), [(AVX2, NARROW), (AVX512, NARROW), (BF16, SLOWER)])
def test_left_to_us_float32_multiplies_weights_as_they_are_stored(kept: str, machine: Machine, why: str) -> None:
    assert choose("auto", "none", kept, machine) == Arithmetic("float32", kept, kept, machine.kernels, why)


@pytest.mark.parametrize("kept", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("machine", "why"), [(AMX, TILES), (ZEN, VECTORS)])
def test_left_to_us_it_is_bfloat16_where_that_is_fast(kept: str, machine: Machine, why: str) -> None:
    assert choose("auto", "none", kept, machine) == Arithmetic("bfloat16", "bfloat16", "bfloat16", machine.kernels, why)


@pytest.mark.parametrize("machine", [AVX2, BF16, ZEN, AMX])
def test_bfloat16_that_is_not_the_kernels_is_not_chosen(machine: Machine) -> None:
    found = choose("auto", "none", "float16", machine, bfloat16_is_ours=False)
    assert found == Arithmetic(
        "float32", "float16", "float16", machine.kernels, "the kernels have no bfloat16 for this model"
    )
    asked = choose("bfloat16", "none", "float16", machine, bfloat16_is_ours=False)
    assert asked == Arithmetic("bfloat16", "bfloat16", "bfloat16", machine.kernels)


@pytest.mark.parametrize(
    ("dtype", "quantization", "kept", "machine", "found"),
    [
        ("auto", "none", "bfloat16", TORCH, Arithmetic("float32", "float32", "float32", None, WIDE)),
        ("auto", "none", None, BF16, Arithmetic("float32", "float32", "float32", None, WIDE)),
        ("auto", "none", None, ZEN, Arithmetic("float32", "float32", "float32", None, WIDE)),
        ("auto", "none", None, AMX, Arithmetic("float32", "float32", "float32", None, WIDE)),
        ("float32", "none", "bfloat16", BF16, Arithmetic("float32", "float32", "float32", "avx512_bf16")),
        ("float32", "none", "bfloat16", ZEN, Arithmetic("float32", "float32", "float32", "avx512_bf16")),
        ("float32", "none", "bfloat16", AMX, Arithmetic("float32", "float32", "float32", "amx_bf16")),
        ("bfloat16", "none", "float32", BF16, Arithmetic("bfloat16", "bfloat16", "bfloat16", "avx512_bf16")),
        ("bfloat16", "none", "float32", AVX2, Arithmetic("bfloat16", "bfloat16", "bfloat16", "avx2")),
        ("bfloat16", "none", "float32", TORCH, Arithmetic("bfloat16", "bfloat16", "bfloat16", None)),
        ("float16", "none", "float16", BF16, Arithmetic("float16", "float16", "float16", None)),
        ("auto", "int8", "bfloat16", AVX2, Arithmetic("float32", "int8", "bfloat16", "avx2", NARROW)),
        ("auto", "int8", "float16", AMX, Arithmetic("bfloat16", "int8", "bfloat16", "amx_bf16", TILES)),
        ("auto", "int8", "float16", ZEN, Arithmetic("bfloat16", "int8", "bfloat16", "avx512_bf16", VECTORS)),
        ("float32", "int8", "bfloat16", AVX2, Arithmetic("float32", "int8", "float32", "avx2")),
        ("bfloat16", "int8", "float32", BF16, Arithmetic("bfloat16", "int8", "bfloat16", "avx512_bf16")),
    ],
)
def test_what_is_chosen(dtype: str, quantization: str, kept: str | None, machine: Machine, found: Arithmetic) -> None:
    assert choose(dtype, quantization, kept, machine) == found


@pytest.mark.parametrize(
    ("dtype", "quantization", "machine", "says"),
    [
        ("int8", "none", BF16, "dtype 'int8' is not one of auto, float32, bfloat16, float16"),
        ("auto", "fp8", BF16, "quantization 'fp8' is not one of none, int8"),
        ("float16", "int8", BF16, "in float32 or bfloat16: set --dtype"),
        ("auto", "int8", TORCH, "run `make native`"),
    ],
)
def test_what_cant_be_had(dtype: str, quantization: str, machine: Machine, says: str) -> None:
    with pytest.raises(PagemillError) as error:
        choose(dtype, quantization, "bfloat16", machine)
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert says in str(error.value)


def test_one_line_says_all_of_it() -> None:
    cpu = torch.device("cpu")
    native = Placement(cpu, torch.float32, 2, "float16", "float16", "avx512_bf16")
    assert str(native) == "float32 arithmetic, weights in float16, native avx512_bf16"
    chosen = Placement(cpu, torch.bfloat16, 2, "bfloat16", "bfloat16", "amx_bf16", TILES)
    assert str(chosen) == (
        "bfloat16 arithmetic (auto: tiles multiply it fastest), weights in bfloat16, native amx_bf16"
    )
    assert str(Placement(cpu, torch.bfloat16, 2)) == "bfloat16 arithmetic, weights in bfloat16, torch"


def test_zero_means_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_NATIVE", "0")
    assert native_kernels.instruction_set() is None


def test_kernels_that_there_are_not_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_NATIVE", "sse2")
    monkeypatch.setattr(library, "load", library.load.__wrapped__)
    with pytest.raises(PagemillError, match="PAGEMILL_NATIVE=sse2 can't be had: it is one of 0, avx2, avx512,"):
        native_kernels.instruction_set()


def test_kernels_that_cant_be_loaded_are_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> None:
        raise OSError("libpagemill-avx2.so: version `GLIBC_2.99' not found")

    monkeypatch.delenv("PAGEMILL_NATIVE", raising=False)
    monkeypatch.setattr(library, "load", load)
    assert native_kernels.instruction_set() is None
    assert "so torch computes: libpagemill-avx2.so" in caplog.text
