"""Draws tokens: temperature, min_p, top_k, top_p, then the cumulative distribution inverted at a number in [0, 1).

Weights are whole numbers, the likeliest token's 2^35 and none below 0, so that float64 adds them without rounding: sums do not
depend on the order in which a device adds, and a row's token not on the rows beside it. A token less likely than the likeliest
by a factor above 2^35 is never drawn. Called by `sampler`, with rows that it has found finite or masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from pagemill_server.engine.request import SamplingParams

_HEAVIEST = 2.0**35  # of 2^18 tokens that heavy the sum is 2^53, the last that float64 counts to
_STEEPEST = 1e30  # 1 / temperature at most: what is colder is greedy long before
_ROWS = 4  # at once: what they need stays in a core's cache
_GUESS = 256  # tokens among which the nucleus is looked for first: it rarely has more

# A weight's bin: float64's exponent and the first 7 bits of its mantissa. Those of 1 and 2^35 are the first and the last.
_BIN_SHIFT = 45
_FIRST_BIN = 1023 << 7
_BINS = (35 << 7) + 1


def draw(logits: torch.Tensor, settings: Sequence[SamplingParams], numbers: Sequence[float]) -> list[int]:
    """float32 [R, vocab_size], each row with a finite maximum, and its settings and number → a token a row."""
    tokens: list[int] = []
    for start in range(0, len(settings), _ROWS):
        part = slice(start, start + _ROWS)
        tokens += _draw(logits[part], settings[part], numbers[part])
    return tokens


def _draw(logits: torch.Tensor, settings: Sequence[SamplingParams], numbers: Sequence[float]) -> list[int]:
    weights = _weights(logits, [params.temperature for params in settings])
    for row, params in enumerate(settings):
        if params.min_p > 0:
            weights[row] = _at_least(weights[row], params.min_p * _HEAVIEST)
    if not any(_is_truncated(params, len(row)) for row, params in zip(weights, settings, strict=True)):
        return [int(token) for token in _invert(weights, _column(numbers, weights)).squeeze(1).tolist()]
    return [
        _draw_truncated(row, params, number) if _is_truncated(params, len(row)) else _draw_one(row, number)
        for row, params, number in zip(weights, settings, numbers, strict=True)
    ]


def _weights(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """float32 [R, vocab_size] → float64 of the same shape, whole numbers."""
    steepness = _column([min(1 / temperature, _STEEPEST) for temperature in temperatures], logits)
    shares = (logits - logits.amax(1, keepdim=True)).mul_(steepness).exp_()
    return shares.double().mul_(_HEAVIEST).floor_()


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _at_least(weights: torch.Tensor, least: float) -> torch.Tensor:
    """The same weights, 0 for those below `least`."""
    return functional.threshold(weights, math.ceil(least) - 0.5, 0.0)


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """[…, N] and [… , 1] → int64 [… , 1]: the first whose cumulative weight is above the number's share of all; never one of
    weight zero."""
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, (numbers * cumulative[..., -1:]).floor(), right=True)


def _draw_one(weights: torch.Tensor, number: float) -> int:
    return int(_invert(weights, weights.new_tensor([number])))


def _is_truncated(params: SamplingParams, size: int) -> bool:
    return 0 < params.top_k < size or params.top_p < 1


def _draw_truncated(weights: torch.Tensor, params: SamplingParams, number: float) -> int:
    """From what top_k and then top_p (https://arxiv.org/abs/1904.09751) leave of float64 [vocab_size]."""
    size = len(weights)
    has_top_k = 0 < params.top_k < size
    top = weights.topk(params.top_k if has_top_k else min(_GUESS, size))
    kept = top.values
    if params.top_p < 1:
        needed = params.top_p * float((kept if has_top_k else weights).sum())
        cumulative = kept.cumsum(0)
        if float(cumulative[-1]) < needed:
            return _draw_one(_nucleus(weights, needed), number)
        # The first at which the mass is reached is the last that stays.
        kept = kept[: int(torch.searchsorted(cumulative, needed)) + 1]
    return int(top.indices[_draw_one(kept, number)])


def _nucleus(weights: torch.Tensor, needed: float) -> torch.Tensor:
    """The weights of the fewest of the likeliest tokens that weigh `needed` together, the lowest ids of equals; 0 for the rest.

    For flat distributions: sorting a vocabulary takes milliseconds, so it is counted into bins, and one of them is sorted.
    """
    bins = (weights.view(torch.int64) >> _BIN_SHIFT).sub_(_FIRST_BIN).clamp_(min=0)
    of_bins = torch.bincount(bins, weights=weights, minlength=_BINS).flip(0)  # the heaviest tokens' first
    cumulative = of_bins.cumsum(0)
    place = int(torch.searchsorted(cumulative, needed))
    inside = weights[bins == _BINS - 1 - place].sort(descending=True).values
    left = needed - float(cumulative[place] - of_bins[place])
    last = int(torch.searchsorted(inside.cumsum(0), left))
    least = float(inside[last])
    kept = _at_least(weights, least)
    if surplus := int((inside[last + 1 :] == least).sum()):
        kept[(weights == least).nonzero().squeeze(1)[-surplus:]] = 0.0
    return kept
