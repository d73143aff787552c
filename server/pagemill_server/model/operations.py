"""The small operations of a layer, and choosing a token, where the tensors lie: Triton's kernels on a GPU, elsewhere plain torch
or the native library.

Called by the families' layers and by `sampler`. The one place that imports the kernels, when the first tensor on a GPU comes:
Triton may not be installed where there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from pagemill_kernels import reference
from pagemill_kernels.native import library
from pagemill_kernels.native.likeliest import likeliest as native_likeliest
from pagemill_server.engine.request import SamplingParams
from pagemill_server.model import draw as torch_draw


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Modules of `pagemill_kernels`."""

    rms_norm: ModuleType
    rotary: ModuleType
    swiglu: ModuleType
    sampling: ModuleType


@functools.cache
def _kernels() -> _Kernels:
    from pagemill_kernels import rms_norm, rotary, sampling, swiglu

    return _Kernels(rms_norm, rotary, swiglu, sampling)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `reference.rms_norm`."""
    if not x.is_cuda:
        return reference.rms_norm(x, weight, eps)
    normed: torch.Tensor = _kernels().rms_norm.rms_norm(x, weight, eps)
    return normed


def rms_norm_wide(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `reference.rms_norm_wide`."""
    if not x.is_cuda:
        return reference.rms_norm_wide(x, weight, eps)
    normed: torch.Tensor = _kernels().rms_norm.rms_norm_wide(x, weight, eps)
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual's addition and the norm of the sum: (normed, sum). See `reference.add_rms_norm`."""
    if not x.is_cuda:
        return reference.add_rms_norm(x, residual, weight, eps)
    found: tuple[torch.Tensor, torch.Tensor] = _kernels().rms_norm.add_rms_norm(x, residual, weight, eps)
    return found


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See `reference.rotary`."""
    if not x.is_cuda:
        return reference.rotary(x, cos, sin)
    turned: torch.Tensor = _kernels().rotary.rotary(x, cos, sin)
    return turned


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """See `reference.swiglu`."""
    if not gate_up.is_cuda:
        return reference.swiglu(gate_up)
    product: torch.Tensor = _kernels().swiglu.swiglu(gate_up)
    return product


def likeliest(logits: torch.Tensor) -> list[int | None]:
    """float32 [R, vocab_size] → each row's likeliest token, the lowest id among equals; None where any of it is not finite."""
    if not logits.shape[0]:
        return []
    if logits.is_contiguous() and logits.device.type == "cpu" and library.load() is not None:
        return native_likeliest(logits)
    # A sum is many times faster than to look at each value; one that overflows says nothing, and then they are looked at.
    tokens = torch.where(logits.sum(1).isfinite(), logits.argmax(1), -1).tolist()
    return [_looked_at(logits[row]) if token < 0 else token for row, token in enumerate(tokens)]


def _looked_at(row: torch.Tensor) -> int | None:
    return int(row.argmax()) if row.isfinite().all() else None


def draw(logits: torch.Tensor, settings: Sequence[SamplingParams], numbers: Sequence[float]) -> list[int]:
    """See `draw.draw`."""
    if not logits.is_cuda:
        return torch_draw.draw(logits, settings, numbers)

    def column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)

    tokens: torch.Tensor = _kernels().sampling.top_k_top_p(
        logits,
        column([params.temperature for params in settings], torch.float32),
        column([params.top_k for params in settings], torch.int64),
        column([params.top_p for params in settings], torch.float64),
        column([params.min_p for params in settings], torch.float64),
        column(numbers, torch.float64),
    )
    return [int(token) for token in tokens.tolist()]
