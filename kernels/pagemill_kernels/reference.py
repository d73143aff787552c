"""What each kernel computes, in plain torch: the specification that every backend's results are compared with.

Clear before fast. The norms, `rotary`, `swiglu` and `geglu` are also what the model calls on CPU; attention over the paged cache
has a faster twin in `pagemill_server.model.attention`. Knows nothing of schedulers or model files.

A layer's cache is two tensors [num_kv_heads, num_blocks, block_size, head_dim]; slot = block * block_size + offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm over the last dimension, computed in float32. x [..., n], weight [n] → [..., n] in x's dtype.

    https://arxiv.org/abs/1910.07467
    """
    wide = x.float()
    variance = wide.square().mean(-1, keepdim=True)
    return (wide * torch.rsqrt(variance + eps)).to(x.dtype) * weight


def rms_norm_wide(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same with the weight multiplied in float32, before rounding to x's dtype. weight float32 [n]."""
    wide = x.float()
    variance = wide.square().mean(-1, keepdim=True)
    return (wide * torch.rsqrt(variance + eps) * weight).to(x.dtype)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head's halves (the layout of Hugging Face's Llama). x [T, heads, d] → the same, in x's dtype.

    cos and sin are [T, d]; sin's first half is negated, so that one swap of the halves serves both.
    https://arxiv.org/abs/2104.09864
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    # Two products and a sum, not addcmul: a fused multiply-add would round differently in a vector loop's tail.
    return x * cos.unsqueeze(1) + swapped * sin.unsqueeze(1)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up [T, 2 * n], gate first → [T, n]. https://arxiv.org/abs/2002.05202"""
    gate, up = gate_up.chunk(2, dim=-1)
    # Not functional.silu: where threads divide the work inside a row it rounds differently; exp and division do not.
    denominator = torch.neg(gate).exp_().add_(1.0)
    return torch.div(gate, denominator, out=denominator).mul_(up)


def geglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up with the tanh approximation, computed in float32. gate_up [T, 2 * n], gate first → [T, n].

    https://arxiv.org/abs/1606.08415
    """
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.float()
    # x * (1 + tanh(y)) / 2 = x / (1 + exp(-2y)): written with exp and division for swiglu's reason.
    inner = (wide * wide * wide * 0.044715 + wide) * (-2 * math.sqrt(2 / math.pi))
    return (wide / inner.exp_().add_(1.0)).to(gate.dtype) * up


def write_kv(
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, head_dim], written in place
    value_cache: torch.Tensor,
    key: torch.Tensor,  # [T, num_kv_heads, head_dim]
    value: torch.Tensor,
    slot_mapping: torch.Tensor,  # int64 [T], distinct
) -> None:
    """Put each token's key and value into its slot."""
    heads, _, block_size, head_dim = key_cache.shape
    for row, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        key_cache[:, block, offset] = key[row].view(heads, head_dim)
        value_cache[:, block, offset] = value[row].view(heads, head_dim)


def paged_attention(
    query: torch.Tensor,  # [T, num_heads, head_dim]
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, head_dim]
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,  # int64 [S, most blocks]
    seq_lens: Sequence[int],  # S: tokens in the cache, this step's included
    query_start: Sequence[int],  # S + 1: sequence i's tokens are rows query_start[i] .. query_start[i+1]
    window: int | None = None,  # keys that a query sees, its own included; None: all up to its own
    scale: float | None = None,  # of the scores; None: 1/sqrt(head_dim)
) -> torch.Tensor:  # [T, num_heads, head_dim]
    """Causal grouped-query attention of each sequence's newest tokens over its cached ones.

    The window is Mistral's: https://arxiv.org/abs/2310.06825
    """
    kv_heads, _, block_size, head_dim = key_cache.shape
    group = query.shape[1] // kv_heads
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    for index, seq_len in enumerate(seq_lens):
        first, last = query_start[index], query_start[index + 1]
        blocks = block_tables[index, : -(-seq_len // block_size)]
        keys = key_cache[:, blocks].reshape(kv_heads, -1, head_dim)[:, :seq_len].float()
        values = value_cache[:, blocks].reshape(kv_heads, -1, head_dim)[:, :seq_len].float()
        for row in range(first, last):
            end = seq_len - (last - first) + (row - first) + 1  # the token's own position included
            seen = slice(0 if window is None else max(0, end - window), end)
            for head in range(query.shape[1]):
                scores = keys[head // group, seen] @ query[row, head].float() * scale
                out[row, head] = (scores.softmax(0) @ values[head // group, seen]).to(query.dtype)
    return out
