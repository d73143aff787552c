"""What `--dtype auto` picks on this very machine: it follows the kernels that compute, not what the processor's flags promise."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagemill.model_files import inspect
from pagemill_kernels.native import build, library
from pagemill_server.config import ModelOptions
from pagemill_server.model import device
from pagemill_server.model.device import Placement, place
from tests.kernels.native_libraries import INSTRUCTION_SETS, use_instruction_set
from tests.server.computing import computing, needs_native
from tests.server.model.stepping import load
from tests.server.tiny import write_tiny_llama

# Linux gives a process no tiles while a thread has a stack for signals that could not hold them (x86/kernel/signal.c).
WITHOUT_TILES = """
import ctypes, sys

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0

from pathlib import Path
from pagemill.model_files import inspect
from pagemill_server.config import ModelOptions
from pagemill_server.model import device

device.processor_vendor = lambda: sys.argv[2]
print(device.place(ModelOptions("m", ("m",), device="cpu"), inspect(Path(sys.argv[1]))))
"""


def placed(folder: Path, **options: str) -> Placement:
    return place(ModelOptions("m", ("m",), device="cpu", **options), inspect(folder))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path, torch_dtype="float16")


@pytest.fixture(params=INSTRUCTION_SETS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for _ in use_instruction_set(request.param, monkeypatch):
        yield str(request.param)


@pytest.mark.parametrize(
    ("vendor", "fast"), [("GenuineIntel", {"amx_bf16"}), ("AuthenticAMD", {"amx_bf16", "avx512_bf16"})]
)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_it_follows_the_kernels_in_use(
    folder: Path, kernels: str, vendor: str, fast: set[str], quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "processor_vendor", lambda: vendor)
    found = placed(folder, quantization=quantization)
    assert found.kernels == kernels
    assert found.dtype is (torch.bfloat16 if kernels in fast else torch.float32)
    kept = "bfloat16" if kernels in fast else "float16"
    assert (found.weights, found.table) == ("int8" if quantization == "int8" else kept, kept)


@pytest.mark.parametrize(
    ("vendor", "line"),
    [
        ("GenuineIntel", "float32 arithmetic (auto: vectors multiply bfloat16 no faster), weights in float16,"),
        ("AuthenticAMD", "bfloat16 arithmetic (auto: vectors multiply it fastest), weights in bfloat16,"),
    ],
)
def test_tiles_that_the_system_refuses_count_for_nothing(folder: Path, vendor: str, line: str) -> None:
    needed, _ = build.INSTRUCTION_SETS["amx_bf16"]
    if not library.processor_flags().issuperset(needed) or not build.library("amx_bf16").exists():
        pytest.skip("needs a processor with tiles, and the native kernels")
    environ = {name: value for name, value in os.environ.items() if name != "PAGEMILL_NATIVE"}
    call = [sys.executable, "-c", WITHOUT_TILES, str(folder), vendor]
    said = subprocess.run(call, env=environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True)
    assert said.stdout == f"{line} native avx512_bf16\n", said.stderr


def test_by_torch_it_is_float32(folder: Path) -> None:
    with computing(native=False):
        found = placed(folder)
    assert (found.dtype, found.weights, found.kernels) == (torch.float32, "float32", None)


@needs_native
def test_heads_that_torch_attends_with_are_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys would be multiplied in torch's bfloat16, in which bits may follow from the company."""
    monkeypatch.setattr(device.native_kernels, "instruction_set", lambda: "amx_bf16")
    assert placed(write_tiny_llama(tmp_path / "16", head_dim=16)).dtype is torch.bfloat16
    assert placed(write_tiny_llama(tmp_path / "24", head_dim=24)).dtype is torch.float32


def test_the_log_says_what_was_chosen_and_why(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = placed(folder)
    with caplog.at_level(logging.INFO):
        load(folder, dtype="auto")
    assert f"{found.dtype_name} arithmetic (auto: {found.why}), weights in {found.weights}, " in caplog.text
    assert found.why
