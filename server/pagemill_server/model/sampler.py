"""Chooses each sequence's next token from its row of logits. A row's choice depends on that row, its settings and its counter only.

Called by `runner`; settings were validated at the door. `penalties` changes a row first, `draw` draws, `logprobs` tells how likely
the choice was under the raw distribution. Rows without penalties don't pay for those that have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pagemill_server.engine.request import SampledToken, SamplingParams
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence
from pagemill_server.model.logprobs import with_logprobs
from pagemill_server.model.operations import draw
from pagemill_server.model.penalties import adjust, is_adjusted
from pagemill_server.model.random_numbers import uniform

_NOTHING: Mapping[int, torch.Tensor] = {}


def sample(
    logits: torch.Tensor, sequences: Sequence[ScheduledSequence], forbidden: Mapping[int, torch.Tensor] = _NOTHING
) -> RunnerOutput:
    """float32 [R, vocab_size] and their R sequences → a token each. Rows that are not finite are named in `failed`.

    `forbidden`, bool [vocab_size] by seq_id, is what grammars don't allow; a row that has one and isn't in it fails.
    """
    tokens: dict[int, int] = {}  # by row
    usable = [
        row
        for row in _finite_rows(logits)
        if not _settings(sequences[row]).grammar or sequences[row].seq_id in forbidden
    ]
    for adjusted in (False, True):
        rows = [row for row in usable if is_adjusted(sequences[row]) is adjusted]
        tokens |= _choose(logits, rows, sequences, forbidden, adjusted=adjusted)
    sampled = {sequences[row].seq_id: _told(logits[row], token, sequences[row]) for row, token in tokens.items()}
    return RunnerOutput(sampled, frozenset(sequence.seq_id for sequence in sequences) - sampled.keys())


def _finite_rows(logits: torch.Tensor) -> list[int]:
    # A sum is many times faster than to look at each value; one that overflows says nothing, and then they are looked at.
    sums = logits.sum(1).isfinite().tolist()
    return [row for row, finite in enumerate(sums) if finite or logits[row].isfinite().all()]


def _choose(
    logits: torch.Tensor,
    rows: Sequence[int],
    sequences: Sequence[ScheduledSequence],
    forbidden: Mapping[int, torch.Tensor],
    *,
    adjusted: bool,
) -> dict[int, int]:
    """The tokens of these rows, by row; one without a token that may be drawn gets none."""
    if not rows:
        return {}
    logits = _rows_of(logits, rows, copied=adjusted)
    if adjusted:
        places = [
            place
            for place, row in enumerate(rows)
            if adjust(logits[place], sequences[row], forbidden.get(sequences[row].seq_id))
        ]
        logits, rows = _rows_of(logits, places), [rows[place] for place in places]
    return dict(zip(rows, _tokens(logits, [sequences[row] for row in rows]), strict=True))


def _tokens(logits: torch.Tensor, sequences: Sequence[ScheduledSequence]) -> list[int]:
    """float32 [R, vocab_size] → R tokens: the likeliest where greedy, the lowest id among equals, else a drawn one."""
    drawn = [place for place, sequence in enumerate(sequences) if _settings(sequence).temperature > 0]
    tokens: list[int] = [0] * len(sequences) if len(drawn) == len(sequences) else logits.argmax(1).tolist()
    if drawn:
        chosen = [sequences[place] for place in drawn]
        numbers = [uniform(sequence.seed, sequence.index, sequence.output_position) for sequence in chosen]
        found = draw(_rows_of(logits, drawn), [_settings(sequence) for sequence in chosen], numbers)
        for place, token in zip(drawn, found, strict=True):
            tokens[place] = token
    return tokens


def _told(row: torch.Tensor, token: int, sequence: ScheduledSequence) -> SampledToken:
    count = _settings(sequence).logprobs
    return SampledToken(token) if count is None else with_logprobs(row, token, count)


def _settings(sequence: ScheduledSequence) -> SamplingParams:
    assert sequence.sampling is not None  # batch takes only sequences that are sampled
    return sequence.sampling


def _rows_of(logits: torch.Tensor, rows: Sequence[int], copied: bool = False) -> torch.Tensor:
    """These rows of it; the very same tensor when they are all of them and no copy is wanted."""
    if len(rows) == len(logits) and not copied:
        return logits
    return logits.index_select(0, torch.tensor(rows, device=logits.device))
