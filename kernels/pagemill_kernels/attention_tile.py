"""What both kernels of `paged_attention` do with a tile of keys, and how large tiles are.

The sizes are those that compile without spilled registers for sm_80, sm_90 and sm_100 and leave room for several blocks on a
multiprocessor (docs/kernels.md); float32 is multiplied on tensor cores in three parts, so that it stays float32.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from pagemill_kernels.launch import pad


@triton.jit
def attend_tile(
    query,  # [rows, BLOCK]
    keys,  # the KV head's part of the cache
    key_block,  # strides
    key_token,
    values,
    value_block,
    value_token,
    table,  # the sequence's blocks
    start,  # the tile's first token
    last,  # tokens from here on aren't there
    position,  # [rows]: each sees tokens up to its own
    total,  # [rows, BLOCK]: values summed so far, in terms of exp2(score - top)
    norm,  # [rows]
    top,  # [rows]: the highest score so far
    scale,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,  # else every row sees the whole tile
):
    column = tl.arange(0, BLOCK)[None, :]
    token = start + tl.arange(0, TILE)
    if MASKED:
        there = token < last
        block = tl.load(table + token // BLOCK_SIZE, mask=there, other=0).to(tl.int64)[:, None]
        inside = there[:, None] & (column < SIZE)
    else:
        block = tl.load(table + token // BLOCK_SIZE).to(tl.int64)[:, None]
        inside = (column < SIZE) & (token >= 0)[:, None]
    offset = (token % BLOCK_SIZE)[:, None]
    key_place = keys + block * key_block + offset * key_token + column
    value_place = values + block * value_block + offset * value_token + column
    if MASKED or SIZE < BLOCK:
        key = tl.load(key_place, mask=inside, other=0.0)
        value = tl.load(value_place, mask=inside, other=0.0)
    else:
        key = tl.load(key_place)
        value = tl.load(value_place)
    score = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
    if MASKED:
        visible = there[None, :] & (token[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (token[None, :] > position[:, None] - WINDOW)
        score = tl.where(visible, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, axis=1))
    base = new_top
    if MASKED:  # a row that has seen nothing yet: -inf less -inf is no number
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    share = tl.exp2(score - base[:, None])
    decay = tl.exp2(top - base)
    norm = norm * decay + tl.sum(share, axis=1)
    total = total * decay[:, None] + tl.dot(share.to(value.dtype), value, input_precision="tf32x3")
    return total, norm, new_top


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a program's work is cut."""

    rows: int  # of the matrix product: query heads of a group, times tokens
    tile: int  # keys at once
    num_warps: int
    num_stages: int  # of the loop over tiles that are under way at once; a tile waits for its blocks' numbers first


def decode_tiling(group: int, block: int, itemsize: int) -> Tiling:
    """For one token of a sequence: query heads a KV head, the padded head_dim, bytes an element."""
    if itemsize > 2:
        return Tiling(pad(group, 16), 32 if block <= 128 else 16, num_warps=4, num_stages=2)
    return Tiling(pad(group, 16), 32 if block <= 256 else 16, num_warps=4, num_stages=5 if block <= 128 else 4)


def chunks_tiling(group: int, block: int, itemsize: int, tokens_each: int) -> Tiling:
    """Likewise for chunks of so many tokens on average."""
    if itemsize > 2:
        return Tiling(pad(group, 16), 32 if block == 128 else 16, num_warps=4, num_stages=2)
    if tokens_each * group <= 32:
        return Tiling(pad(group, 16), 32 if block <= 256 else 16, num_warps=4, num_stages=3)
    return Tiling(pad(group, 64), 32, num_warps=4 if block <= 128 else 8, num_stages=2)
