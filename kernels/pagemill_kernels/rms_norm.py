"""Root mean square norm in Triton, alone and after the residual's addition. Specified by `reference.rms_norm` and its kin.

A program computes a few rows, each whole in registers: memory is read once and written once. Sums are in float32.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemill_kernels.launch import ceil_div, pad, warps

_TILE = 2048  # elements a program, where rows are shorter


@triton.jit
def _rms_norm(
    x,
    x_token,  # strides
    x_head,
    residual,
    residual_token,
    weight,
    out,
    new_residual,
    rows,
    heads,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < SIZE)[None, :]
    token = (row // heads).to(tl.int64)
    head = row % heads
    value = tl.load(x + token[:, None] * x_token + head[:, None] * x_head + column[None, :], mask=there, other=0.0)
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    if ADD:
        other = tl.load(residual + token[:, None] * residual_token + column[None, :], mask=there, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(new_residual + place, value, mask=there)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)
    normed = wide * scale[:, None]
    if not WIDE:  # rounded before the weight is multiplied, as Llama does
        normed = normed.to(x.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    tl.store(out + place, (normed * factor[None, :]).to(out.dtype.element_ty), mask=there)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Norm over the last dimension. x [T, n] or [T, heads, n] with any strides but the last's, which is 1; weight [n] in x's
    dtype → contiguous, x's shape and dtype."""
    return _launch(x, None, weight, eps, wide=False)[0]


def rms_norm_wide(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same with the weight, float32 [n], multiplied before rounding to x's dtype: Gemma's."""
    return _launch(x, None, weight, eps, wide=True)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual's addition and the norm of the sum. x, residual [T, n], weight [n], one dtype → (normed, x + residual)."""
    return _launch(x, residual, weight, eps, wide=False)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, *, wide: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    size, heads = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
    assert x.dim() in (2, 3)
    assert x.stride(-1) == 1
    assert weight.is_contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_residual = out if residual is None else torch.empty_like(out)
    rows, block = x.shape[0] * heads, pad(size)
    if not rows:
        return out, new_residual
    rows_each = max(1, _TILE // block)
    _rms_norm[(ceil_div(rows, rows_each),)](
        x,
        x.stride(0),
        x.stride(1) if x.dim() == 3 else 0,
        x if residual is None else residual,
        0 if residual is None else residual.stride(0),
        weight,
        out,
        new_residual,
        rows,
        heads,
        eps,
        SIZE=size,
        BLOCK=block,
        ROWS=rows_each,
        ADD=residual is not None,
        WIDE=wide,
        num_warps=warps(rows_each * block),
    )
    return out, new_residual
