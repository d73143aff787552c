"""Draws a token a row in Triton: temperature, min_p, top_k, top_p, then the cumulative distribution inverted at a number in [0, 1).
Specified by `reference.top_k_top_p`.

Nothing is sorted. A token's weight is a whole number, the likeliest's 2^35, and its key is weight * 2^20 + (2^20 - 1 - id): keys
differ, and a higher one comes earlier in the order of falling weight, lower ids first among equals. What top_k and top_p leave are
the keys from some cut on. It is searched between bounds that each pass over the row narrows to a fifth; a search ends when
one key is left between them, mostly after few passes. Whole numbers add exactly, so a result depends on no order of summing.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemill_kernels.launch import pad

_MOST_TOKENS = 1 << 20  # ids that a key has room for
_TILE = 2048  # tokens at once

_HEAVIEST = tl.constexpr(1 << 35)
_IDS = tl.constexpr(1 << 20)
_STEEPEST = tl.constexpr(1e30)  # 1 / temperature at most: what is colder is greedy long before
_PIVOTS = tl.constexpr(4)  # places where a pass measures


@triton.jit
def _weigh(row, start, size, top, steepness, TILE: tl.constexpr):
    """Weights int64 [TILE] of the tokens from start on, and their ids."""
    token = start + tl.arange(0, TILE)
    logit = tl.load(row + token, mask=token < size, other=float("-inf"))
    share = tl.exp((logit - top) * steepness)
    return (share * _HEAVIEST).to(tl.int64), token


@triton.jit
def _search(row, size, top, steepness, cut, needed, BY_WEIGHT: tl.constexpr, TILE: tl.constexpr):
    """The highest cut from which on the keys count, or weigh, `needed` or more. `cut` is one that does."""
    high = cut * 0 + (_HEAVIEST * _IDS + _IDS)  # above all keys: nothing
    low = cut
    between = needed * 0 + 2  # keys from low to high
    beyond = needed * 0  # keys from high on
    part = tl.arange(0, _PIVOTS).to(tl.int64)
    known = needed * 0 - 1  # keys from low on, -1: not counted yet
    while (high - low > 1) & (between > 1):
        pivots = tl.minimum(low + tl.maximum((high - low) // (_PIVOTS + 1), 1) * (part + 1), high - 1)
        counts = tl.zeros([_PIVOTS, TILE], tl.int32)
        weights = tl.zeros([_PIVOTS, TILE], tl.int64)
        for start in range(0, size, TILE):
            weight, token = _weigh(row, start, size, top, steepness, TILE)
            key = weight * _IDS + (_IDS - 1 - token)
            above = key[None, :] >= pivots[:, None]
            counts += above.to(tl.int32)
            if BY_WEIGHT:
                weights += tl.where(above, weight[None, :], 0)
        count = tl.sum(counts, axis=1).to(tl.int64)
        measure = count
        if BY_WEIGHT:
            measure = tl.sum(weights, axis=1)
        enough = measure >= needed
        low = tl.maximum(low, tl.max(tl.where(enough, pivots, low), axis=0))
        high = tl.minimum(high, tl.min(tl.where(enough, high, pivots), axis=0))
        # Of the pivots that are enough the highest has the fewest keys, of the others the lowest the most.
        fewest = tl.min(tl.where(enough, count, _IDS), axis=0).to(tl.int64)
        known = tl.where(fewest < _IDS, fewest, known)
        beyond = tl.maximum(beyond, tl.max(tl.where(enough, 0, count), axis=0))
        between = tl.where(known < 0, 2, known - beyond)
    return low


@triton.jit
def _mass(row, size, top, steepness, cut, TILE: tl.constexpr):
    """What the keys from the cut on weigh."""
    weights = tl.zeros([TILE], tl.int64)
    for start in range(0, size, TILE):
        weight, token = _weigh(row, start, size, top, steepness, TILE)
        weights += tl.where(weight * _IDS + (_IDS - 1 - token) >= cut, weight, 0)
    return tl.sum(weights, axis=0)


@triton.jit
def _count(row, size, top, steepness, cut, TILE: tl.constexpr):
    """How many keys there are from the cut on."""
    counts = tl.zeros([TILE], tl.int32)
    for start in range(0, size, TILE):
        weight, token = _weigh(row, start, size, top, steepness, TILE)
        counts += (weight * _IDS + (_IDS - 1 - token) >= cut).to(tl.int32)
    return tl.sum(counts, axis=0)


@triton.jit
def _argmax(row, size, TILE: tl.constexpr):
    """The highest logit and its id, the lowest of equals."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    ids = tl.arange(0, TILE)
    for start in range(0, size, TILE):
        token = start + tl.arange(0, TILE)
        logit = tl.load(row + token, mask=token < size, other=float("-inf"))
        ids = tl.where(logit > best, token, ids)
        best = tl.maximum(best, logit)
    top = tl.max(best, axis=0)
    return top, tl.min(tl.where(best == top, ids, size - 1), axis=0)


@triton.jit
def _invert(row, size, top, steepness, cut, target, fallback, TILE: tl.constexpr):
    """The first id at which the cumulative weight of the keys from the cut on is above the target."""
    found = fallback
    before = target * 0
    for start in range(0, size, TILE):
        weight, token = _weigh(row, start, size, top, steepness, TILE)
        weight = tl.where(weight * _IDS + (_IDS - 1 - token) >= cut, weight, 0)
        after = before + tl.sum(weight, axis=0)
        if (before <= target) & (after > target):
            found = tl.min(tl.where(before + tl.cumsum(weight, axis=0) > target, token, size - 1), axis=0)
        before = after
    return found


@triton.jit
def _top_k_top_p(
    logits,
    logits_row,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    tokens,
    size,
    TILE: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * logits_row
    temperature = tl.load(temperatures + index).to(tl.float32)
    top, likeliest = _argmax(row, size, TILE)
    if temperature <= 0:
        tl.store(tokens + index, likeliest.to(tl.int64))
        return
    steepness = tl.minimum(1.0 / temperature, _STEEPEST)
    least = tl.ceil(tl.load(min_ps + index).to(tl.float64) * _HEAVIEST).to(tl.int64)
    cut = tl.maximum(least, 1) * _IDS  # a token without weight is never drawn
    top_k = tl.load(top_ks + index).to(tl.int64)
    if (top_k > 0) & (top_k < size):  # noqa: SIM102 -- counted only where it may matter
        if _count(row, size, top, steepness, cut, TILE) > top_k:
            cut = _search(row, size, top, steepness, cut, top_k, False, TILE)
    mass = _mass(row, size, top, steepness, cut, TILE)
    top_p = tl.load(top_ps + index).to(tl.float64)
    if top_p < 1:
        needed = tl.maximum(tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64), 1)
        cut = _search(row, size, top, steepness, cut, needed, True, TILE)
        mass = _mass(row, size, top, steepness, cut, TILE)
    target = tl.floor(tl.load(uniforms + index).to(tl.float64) * mass.to(tl.float64)).to(tl.int64)
    tl.store(tokens + index, _invert(row, size, top, steepness, cut, target, likeliest, TILE).to(tl.int64))


def top_k_top_p(
    logits: torch.Tensor,  # float32 [R, V], any stride between rows; each with a finite maximum
    temperature: torch.Tensor,  # float32 [R]; 0: the likeliest token, the lowest id of equals
    top_k: torch.Tensor,  # int32 or int64 [R]; 0 or less: all
    top_p: torch.Tensor,  # float32 or float64 [R]; 1: all
    min_p: torch.Tensor,  # likewise; 0: all
    uniforms: torch.Tensor,  # likewise, in [0, 1)
) -> torch.Tensor:  # int64 [R]
    """A token a row."""
    rows, size = logits.shape
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    assert size < _MOST_TOKENS
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        tile = min(_TILE, pad(size, 16))
        _top_k_top_p[(rows,)](
            logits, logits.stride(0), temperature, top_k, top_p, min_p, uniforms, tokens, size, TILE=tile, num_warps=8
        )
    return tokens
