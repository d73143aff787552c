"""What changes a row of logits before a token is chosen: biases, penalties, and the masks of a grammar and of a minimum length.

Biases and penalties touch only the entries of named tokens, each by itself, in float64, and held within float32's finite range:
whatever a client asks for, no NaN and no infinity comes of it but the masks' own. Used by `sampler`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence

_LARGEST = torch.finfo(torch.float32).max


def is_adjusted(sequence: ScheduledSequence) -> bool:
    """Whether `adjust` would change the sequence's row."""
    params = sequence.sampling
    assert params is not None
    return bool(params.logit_bias or params.grammar) or _penalises(params) or _too_short(sequence, params)


def adjust(row: torch.Tensor, sequence: ScheduledSequence, forbidden: torch.Tensor | None = None) -> bool:
    """Change a row of logits, float32 [vocab_size], in place: bias, repetition, frequency and presence, grammar, minimum length.

    `forbidden`, bool [vocab_size], is what the grammar doesn't allow. False: no token is left that may be chosen.
    """
    params = sequence.sampling
    assert params is not None
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        _change(
            row,
            np.array(ids, dtype=np.int64),
            lambda logits: logits + torch.tensor(biases, dtype=torch.float64).to(row.device),
        )
    if _penalises(params):
        assert sequence.history is not None, "the scheduler hands the history of a sequence with penalties"
        _penalise(row, np.array(sequence.history, dtype=np.int64), sequence.num_prompt_tokens, params)
    if forbidden is not None:
        row.masked_fill_(forbidden.to(row.device), -torch.inf)
    if _too_short(sequence, params):
        _forbid_ends(row, params, unless_all=forbidden is not None)
    elif forbidden is None:
        return True
    return bool(row.max() > -torch.inf)


def _forbid_ends(row: torch.Tensor, params: SamplingParams, *, unless_all: bool) -> None:
    """With `unless_all` they stay where there is nothing else: a grammar that is at its end ends the sequence."""
    ends = torch.tensor(params.stop_token_ids, device=row.device)
    kept = row[ends]
    row[ends] = -torch.inf
    if unless_all and not row.max() > -torch.inf:
        row[ends] = kept


def _penalises(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0


def _too_short(sequence: ScheduledSequence, params: SamplingParams) -> bool:
    return sequence.output_position < params.min_tokens and bool(params.stop_token_ids)


def _penalise(row: torch.Tensor, history: np.ndarray, num_prompt_tokens: int, params: SamplingParams) -> None:
    """Repetition looks at prompt and output (https://arxiv.org/abs/1909.05858), frequency and presence at the output alone."""
    if (penalty := params.repetition_penalty) != 1:
        _change(row, history, lambda x: torch.where(x > 0, x / penalty, x * penalty))
    if params.frequency_penalty or params.presence_penalty:
        output, counts = np.unique(history[num_prompt_tokens:], return_counts=True)
        costs = torch.from_numpy(params.frequency_penalty * counts + params.presence_penalty).to(row.device)
        _change(row, output, lambda x: x - costs)


def _change(row: torch.Tensor, ids: np.ndarray, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Ids may repeat where `function` gives the same for the same: all are read before any is written."""
    places = torch.from_numpy(ids).to(row.device)
    row[places] = function(row[places].double()).clamp(-_LARGEST, _LARGEST).float()
