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
from pagemill_server.model.operations import draw, likeliest
from pagemill_server.model.penalties import adjust, is_adjusted
from pagemill_server.model.random_numbers import uniform

_NOTHING: Mapping[int, torch.Tensor] = {}


def sample(
    logits: torch.Tensor, sequences: Sequence[ScheduledSequence], forbidden: Mapping[int, torch.Tensor] = _NOTHING
) -> RunnerOutput:
    """float32 [R, vocab_size] and their R sequences → a token each. Rows that are not finite are named in `failed`.

    `forbidden`, bool [vocab_size] by seq_id, is what grammars don't allow; a row that has one and isn't in it fails.
    """
    likely = likeliest(logits)
    usable = [
        row
        for row, token in enumerate(likely)
        if token is not None and (not _settings(sequences[row]).grammar or sequences[row].seq_id in forbidden)
    ]
    adjusted = [row for row in usable if is_adjusted(sequences[row])]
    plain = [row for row in usable if row not in adjusted] if adjusted else usable
    tokens = _plain(logits, plain, sequences, likely) | _adjusted(logits, adjusted, sequences, forbidden)  # by row
    sampled = {sequences[row].seq_id: _told(logits[row], token, sequences[row]) for row, token in tokens.items()}
    return RunnerOutput(sampled, frozenset(sequence.seq_id for sequence in sequences) - sampled.keys())


def _plain(
    logits: torch.Tensor,
    rows: Sequence[int],
    sequences: Sequence[ScheduledSequence],
    likely: Sequence[int | None],
) -> dict[int, int]:
    """The tokens of rows that stay as they are, by row: the likeliest where greedy, else a drawn one."""
    tokens = {row: token for row in rows if (token := likely[row]) is not None}
    if drawn := [row for row in rows if _settings(sequences[row]).temperature > 0]:
        tokens |= _draw(_rows_of(logits, drawn), drawn, sequences)
    return tokens


def _adjusted(
    logits: torch.Tensor,
    rows: Sequence[int],
    sequences: Sequence[ScheduledSequence],
    forbidden: Mapping[int, torch.Tensor],
) -> dict[int, int]:
    """The tokens of rows that are changed first, by row; one without a token that may be drawn gets none."""
    if not rows:
        return {}
    changed = _rows_of(logits, rows, copied=True)
    left = {  # by row, where it is in `changed`
        row: place
        for place, row in enumerate(rows)
        if adjust(changed[place], sequences[row], forbidden.get(sequences[row].seq_id))
    }
    drawn = [row for row in left if _settings(sequences[row]).temperature > 0]
    tokens = {row: int(changed[left[row]].argmax()) for row in left if row not in drawn}
    if drawn:
        tokens |= _draw(_rows_of(changed, [left[row] for row in drawn]), drawn, sequences)
    return tokens


def _draw(logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[ScheduledSequence]) -> dict[int, int]:
    """float32 [R, vocab_size], of these R rows → their tokens."""
    chosen = [sequences[row] for row in rows]
    numbers = [uniform(sequence.seed, sequence.index, sequence.output_position) for sequence in chosen]
    return dict(zip(rows, draw(logits, [_settings(sequence) for sequence in chosen], numbers), strict=True))


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
