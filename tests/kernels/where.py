"""Where a test runs a kernel: interpreted on CPU, or on a GPU (`-m gpu`). Both are called alike, with CPU tensors."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import pytest
import torch

from tests.kernels.interpreter import Interpreter


class Kernels(Protocol):
    """Calls kernels."""

    def call(self, function: str, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """`module.function` of pagemill_kernels → its result, and the arguments as it left them."""


class Device:
    """The current CUDA device."""

    def call(self, function: str, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        module, _, name = function.partition(".")
        called = getattr(importlib.import_module(f"pagemill_kernels.{module}"), name)
        moved = _moved((args, kwargs), "cuda")
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # torch.empty is filled with NaN
        try:
            result = called(*moved[0], **moved[1])
        finally:
            torch.use_deterministic_algorithms(before)
        torch.cuda.synchronize()
        back = _moved((result, *moved), "cpu")
        return back[0], back[1], back[2]


def _moved(value: Any, device: str) -> Any:
    """The same with its tensors elsewhere, their strides kept: views of wider rows stay views of wider rows."""
    if isinstance(value, torch.Tensor):
        storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(device)
        return storage.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, dict):
        return {key: _moved(one, device) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(one, device) for one in value)
    return value


_interpreter = Interpreter()
EVERYWHERE = (
    pytest.param(_interpreter, id="interpreted"),
    pytest.param(Device(), id="gpu", marks=pytest.mark.gpu),
)
ON_A_GPU = (pytest.param(Device(), id="gpu", marks=pytest.mark.gpu),)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to what rounding in the results' dtype allows."""
    assert found.dtype == expected.dtype
    bounds = {torch.float32: (1e-5, 2e-5), torch.bfloat16: (2**-7, 2**-7), torch.float16: (2**-9, 2**-9)}
    rtol, atol = bounds[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=rtol, atol=atol)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
