"""Rotary position embedding in Triton, in the layout of Hugging Face's Llama. Specified by `reference.rotary`.

A program rotates some heads of one token, so that a token's cosines are read once for many heads.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemill_kernels.launch import ceil_div, pad, warps

_TILE = 2048  # elements a program at most


@triton.jit
def _rotary(
    x,
    x_token,  # strides
    x_head,
    cos,
    sin,
    angle_token,
    out,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, BLOCK)
    is_column = column < HALF
    there = (head < HEADS)[:, None] & is_column[None, :]
    source = x + token * x_token + head[:, None] * x_head + column[None, :]
    low = tl.load(source, mask=there, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    angle = token * angle_token + column
    cos_low = tl.load(cos + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos + angle + HALF, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin + angle + HALF, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = out + (token * HEADS + head[:, None]) * (2 * HALF) + column[None, :]
    tl.store(target, (low * cos_low + high * sin_low).to(out.dtype.element_ty), mask=there)
    tl.store(target + HALF, (high * cos_high + low * sin_high).to(out.dtype.element_ty), mask=there)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head's halves. x [T, heads, d] with any strides but the last's, which is 1; cos, sin [T, d], sin's first half
    negated → contiguous [T, heads, d] in x's dtype. Sums are rounded once, from float32."""
    tokens, heads, size = x.shape
    assert x.stride(-1) == cos.stride(-1) == sin.stride(-1) == 1
    assert cos.stride(0) == sin.stride(0)
    assert size % 2 == 0
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    block = pad(size // 2)
    block_heads = min(pad(heads), max(1, _TILE // (2 * block)))
    _rotary[(tokens, ceil_div(heads, block_heads))](
        x,
        x.stride(0),
        x.stride(1),
        cos,
        sin,
        cos.stride(0),
        out,
        HEADS=heads,
        HALF=size // 2,
        BLOCK_HEADS=block_heads,
        BLOCK=block,
        num_warps=warps(2 * block_heads * block),
    )
    return out
