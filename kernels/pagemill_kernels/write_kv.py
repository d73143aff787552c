"""Writes the step's keys and values into the paged cache, in Triton. Specified by `reference.write_kv`.

A program copies some heads of one token. Offsets are of 64 bits: a cache has more than 2^31 elements.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemill_kernels.launch import ceil_div, pad, warps

_TILE = 2048  # elements a program at most, of keys and of values


@triton.jit
def _write_kv(
    key_cache,
    key_cache_head,  # strides
    key_cache_block,
    key_cache_token,
    value_cache,
    value_cache_head,
    value_cache_block,
    value_cache_token,
    key,
    key_token,
    key_head,
    value,
    value_token,
    value_head,
    slot_mapping,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    there = (head < HEADS) & (column < SIZE)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    new_key = tl.load(key + token * key_token + head * key_head + column, mask=there)
    new_value = tl.load(value + token * value_token + head * value_head + column, mask=there)
    key_place = key_cache + head * key_cache_head + block * key_cache_block + offset * key_cache_token + column
    value_place = (
        value_cache + head * value_cache_head + block * value_cache_block + offset * value_cache_token + column
    )
    tl.store(key_place, new_key.to(key_cache.dtype.element_ty), mask=there)
    tl.store(value_place, new_value.to(value_cache.dtype.element_ty), mask=there)


def write_kv(
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, head_dim], written in place
    value_cache: torch.Tensor,
    key: torch.Tensor,  # [T, num_kv_heads, head_dim], any strides but the last's, which is 1
    value: torch.Tensor,
    slot_mapping: torch.Tensor,  # int64 [T], distinct; -1: the token is left out
) -> None:
    """Put each token's key and value into its slot."""
    heads, _, block_size, size = key_cache.shape
    assert key_cache.stride(-1) == value_cache.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    tokens = slot_mapping.shape[0]
    if not tokens:
        return
    block = pad(size)
    block_heads = min(pad(heads), max(1, _TILE // block))
    _write_kv[(tokens, ceil_div(heads, block_heads))](
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        key,
        *key.stride()[:2],
        value,
        *value.stride()[:2],
        slot_mapping,
        HEADS=heads,
        SIZE=size,
        BLOCK_SIZE=block_size,
        BLOCK_HEADS=block_heads,
        BLOCK=block,
        num_warps=warps(block_heads * block),
    )
