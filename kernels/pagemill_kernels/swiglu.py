"""The gated MLP's activation in Triton. Specified by `reference.swiglu`. A program computes a piece of one row."""

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
def _swiglu(gate_up, gate_up_token, out, size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    source = gate_up + token * gate_up_token + column
    gate = tl.load(source, mask=there, other=0.0).to(tl.float32)
    up = tl.load(source + size, mask=there, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=there)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, computed in float32 and rounded once. gate_up [T, 2 * n], gate first, any stride between rows → [T, n]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        block = min(_TILE, pad(size))
        _swiglu[(tokens, ceil_div(size, block))](
            gate_up, gate_up.stride(0), out, size, BLOCK=block, num_warps=warps(block)
        )
    return out
