"""Chooses each sequence's next token from its row of logits. A row's choice depends on that row, its settings and its counter only.

Called by `runner`; settings were validated at the door. Log-probabilities are those of the raw distribution, before temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill_server.engine.request import SampledToken, SamplingParams, TokenLogprob
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence
from pagemill_server.model.random_numbers import uniform

_NUCLEUS_GUESS = (
    256  # most likely tokens looked at first for top_p: sorting a whole vocabulary is slow and rarely needed
)


def sample(logits: torch.Tensor, sequences: Sequence[ScheduledSequence]) -> RunnerOutput:
    """float32 [R, vocab_size] and their R sequences → a token each; rows that are not finite are named in `failed`."""
    if not sequences:
        return RunnerOutput({})
    low, high = torch.aminmax(logits, dim=-1)  # NaN wins in both
    finite = (low.isfinite() & high.isfinite()).tolist()
    likeliest = logits.argmax(dim=-1).tolist()  # the lowest id among equals
    sampled: dict[int, SampledToken] = {}
    failed = set()
    for row, sequence in enumerate(sequences):
        params = sequence.sampling
        assert params is not None  # batch takes only sequences that are sampled
        if not finite[row]:
            failed.add(sequence.seq_id)
            continue
        token = likeliest[row]
        if params.temperature > 0:
            token = _draw(logits[row], params, uniform(sequence.seed, sequence.output_position))
        sampled[sequence.seq_id] = (
            SampledToken(token) if params.logprobs is None else _with_logprobs(logits[row], token, params.logprobs)
        )
    return RunnerOutput(sampled, frozenset(failed))


def _draw(row: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Invert the cumulative distribution of temperature, then top_k, then top_p, at `number` in [0, 1)."""
    # Shifting by the maximum first keeps a tiny temperature from overflowing.
    weights = ((row - row.max()).double() / params.temperature).exp()  # float64 [vocab_size], not normalised
    if not (0 < params.top_k < len(row) or params.top_p < 1):
        return _invert(weights, number)
    weights, ids = _most_likely(weights, params)
    return int(ids[_invert(weights, number)])


def _most_likely(weights: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights that top_k and top_p leave, descending, and their token ids."""
    size = len(weights)
    kept = min(params.top_k or size, size)
    if kept < size or params.top_p >= 1:
        top = weights.topk(kept)
        needed = params.top_p * top.values.sum()
    else:
        needed = params.top_p * weights.sum()
        count = min(size, _NUCLEUS_GUESS)
        top = weights.topk(count)
        while count < size and top.values.sum() < needed:
            count = min(size, 8 * count)
            top = weights.topk(count)
    if params.top_p >= 1:
        return top.values, top.indices
    # The first at which the mass is reached is the last that stays.
    last = min(int(torch.searchsorted(top.values.cumsum(0), needed)), len(top.values) - 1)
    return top.values[: last + 1], top.indices[: last + 1]


def _invert(weights: torch.Tensor, number: float) -> int:
    cumulative = weights.cumsum(0)
    # The first whose cumulative weight is above the target: one of weight zero is never chosen.
    index = int(torch.searchsorted(cumulative, number * cumulative[-1], right=True))
    return min(index, len(weights) - 1)


def _with_logprobs(row: torch.Tensor, token: int, count: int) -> SampledToken:
    logprobs = row.log_softmax(0)
    top: tuple[TokenLogprob, ...] = ()
    if count > 0:
        best = logprobs.topk(min(count, len(row)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        top = tuple(TokenLogprob(token_id, logprob) for token_id, logprob in pairs)
    return SampledToken(token, float(logprobs[token]), top)
