"""Log-probabilities of the raw distribution, before temperature and whatever else shapes a draw: of sampled tokens, and of a
prompt's own. Each row by itself, so that neither the batch nor the chunks of a prompt change a bit. Called by `sampler`, `runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagemill_server.engine.request import SampledToken, TokenLogprob
from pagemill_server.engine.schedule import ScheduledSequence

_ROWS = 64  # of a prompt whose logits exist at once: with a vocabulary of 128 K, 32 MiB


def with_logprobs(row: torch.Tensor, token: int, count: int) -> SampledToken:
    """A sampled token, with its log-probability and the `count` most likely, from logits, float32 [vocab_size]."""
    logprobs = row.log_softmax(0)
    return SampledToken(token, float(logprobs[token]), _most_likely(logprobs[None], count)[0])


def of_prompt(
    sequence: ScheduledSequence, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[SampledToken, ...] | None:
    """Of the sequence's `prompt_targets`, whose tokens before them have the hidden states [len(prompt_targets), hidden_size].

    `head` makes logits of hidden states. None if the logits of some are not finite.
    """
    scored: list[SampledToken] = []
    for start in range(0, len(sequence.prompt_targets), _ROWS):
        logits = head(hidden[start : start + _ROWS])
        if not logits.isfinite().all():
            return None
        targets = sequence.prompt_targets[start : start + _ROWS]
        scored += _scored(logits.log_softmax(1), targets, sequence.prompt_top)
    return tuple(scored)


def _scored(logprobs: torch.Tensor, targets: Sequence[int], count: int) -> list[SampledToken]:
    """float32 [R, vocab_size] and R tokens."""
    own = logprobs.gather(1, torch.tensor(targets, device=logprobs.device).unsqueeze(1))
    ranks = (logprobs > own).sum(1) + 1
    rows = zip(targets, own.squeeze(1).tolist(), _most_likely(logprobs, count), ranks.tolist(), strict=True)
    return [SampledToken(*row) for row in rows]


def _most_likely(logprobs: torch.Tensor, count: int) -> list[tuple[TokenLogprob, ...]]:
    """float32 [R, vocab_size] → descending, for each of the R."""
    best = logprobs.topk(min(count, logprobs.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(TokenLogprob(*pair) for pair in zip(ids, values, strict=True)) for ids, values in rows]
