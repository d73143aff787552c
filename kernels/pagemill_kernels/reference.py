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


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + residual in their dtype, and its norm. x, residual [..., n], weight [n] → (normed, sum)."""
    total = x + residual
    return rms_norm(total, weight, eps), total


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
    slot_mapping: torch.Tensor,  # int64 [T], distinct; -1: the token is left out
) -> None:
    """Put each token's key and value into its slot."""
    heads, _, block_size, head_dim = key_cache.shape
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        block, offset = divmod(slot, block_size)
        key_cache[:, block, offset] = key[row].view(heads, head_dim)
        value_cache[:, block, offset] = value[row].view(heads, head_dim)


def paged_attention(
    query: torch.Tensor,  # [T, num_heads, head_dim]
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, head_dim]
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,  # int64 [S, most blocks]
    seq_lens: Sequence[int],  # S: tokens in the cache, this step's included; 0: the rows are padding, and get zeros
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
        if seq_len == 0:
            out[first:last] = 0
            continue
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


def top_k_top_p(
    logits: torch.Tensor,  # float32 [R, vocab_size], each row with a finite maximum
    temperature: torch.Tensor,  # [R]; 0: the likeliest token, the lowest id of equals
    top_k: torch.Tensor,  # integers [R]; 0 or less: all
    top_p: torch.Tensor,  # [R], https://arxiv.org/abs/1904.09751; 1: all
    min_p: torch.Tensor,  # [R], https://arxiv.org/abs/2407.01082; 0: all
    uniforms: torch.Tensor,  # [R], in [0, 1)
) -> torch.Tensor:  # int64 [R]
    """Draw a token a row: temperature, min_p, top_k, top_p, then the cumulative distribution in the order of ids inverted.

    Weights are whole numbers, the likeliest token's 2^35; one of weight 0 is never drawn. Of equals the lowest ids stay.
    """
    settings = (temperature, top_k, top_p, min_p, uniforms)
    tokens = [_draw(row, *of_row) for row, *of_row in zip(logits, *(s.tolist() for s in settings), strict=True)]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def _draw(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, number: float) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    steepness = torch.tensor(1.0) / torch.tensor(temperature, dtype=torch.float32)  # in float32
    shares = ((logits - logits.max()) * steepness.clamp(max=1e30)).exp()
    weights = (shares.double() * 2**35).floor()
    weights[weights < math.ceil(min_p * 2**35)] = 0
    ordered, ids = weights.sort(descending=True, stable=True)
    if 0 < top_k < len(ordered):
        ordered[top_k:] = 0
    if top_p < 1:
        before = ordered.cumsum(0) - ordered
        ordered[before >= max(1, math.ceil(top_p * float(ordered.sum())))] = 0  # the likeliest stays
    kept = torch.zeros_like(weights).scatter_(0, ids, ordered).cumsum(0)
    return int(torch.searchsorted(kept, (number * kept[-1:]).floor(), right=True))
