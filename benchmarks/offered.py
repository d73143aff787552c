"""What a replay asks the engine for: a trace's arrivals and lengths, with the clients and classes that traces don't tell.

Who asks and how urgently is drawn from a seed by a stated rule (`CLASSES`, `CLIENTS`), so that policies that know either can be
compared on the same requests. Prompts are made when they are asked for: a trace holds 145 million tokens. Used by `replay`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.traces import BLOCK, Recorded

VOCAB_SIZE = 1 << 31  # token ids name requests and shared blocks here
CLIENTS = 20  # client k asks with weight 1/k (Zipf)


@dataclass(frozen=True, slots=True)
class Class:
    """How urgent a request is, told twice: as a priority and as a target for the first token."""

    name: str
    share: float  # of the requests
    priority: int
    patience: float  # target: so many times what its prompt takes alone, a full step included


CLASSES = (Class("urgent", 0.2, 0, 3.0), Class("usual", 0.5, 1, 10.0), Class("batch", 0.3, 2, 50.0))


@dataclass(frozen=True, slots=True)
class Offered:
    """One request."""

    number: int  # from 1
    at: float  # seconds after the trace's first, as recorded: the replay stretches it
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # what the prompt begins with, where the trace tells: equal ids, equal tokens
    block_tokens: int  # tokens that one of `blocks` stands for
    client: str
    kind: Class

    def prompt(self) -> tuple[int, ...]:
        """Its token ids. No two requests begin alike but for equal `blocks`."""
        ids: list[int] = []
        for name in self.blocks:
            ids += (VOCAB_SIZE - 1 - name,) * self.block_tokens
        missing = self.prompt_tokens - len(ids)
        return tuple(ids[: self.prompt_tokens]) + (self.number,) * missing


def offer(recorded: Iterable[Recorded], seed: int, shrink: int = 1, longest: int | None = None) -> list[Offered]:
    """The requests of a trace, lengths divided by `shrink`; those of more than `longest` tokens in all are left out."""
    rows = [_scaled(row, shrink) for row in recorded]
    rows = [row for row in rows if longest is None or row.prompt_tokens + row.output_tokens <= longest]
    random_ = random.Random(f"{seed} replay")
    clients = random_.choices(range(CLIENTS), [1 / (rank + 1) for rank in range(CLIENTS)], k=len(rows))
    kinds = random_.choices(CLASSES, [kind.share for kind in CLASSES], k=len(rows))
    return [
        Offered(
            number + 1,
            row.at,
            row.prompt_tokens,
            row.output_tokens,
            row.blocks,
            max(1, BLOCK // shrink),
            f"client-{client}",
            kind,
        )
        for number, (row, client, kind) in enumerate(zip(rows, clients, kinds, strict=True))
    ]


def mean_prompt(offered: Sequence[Offered]) -> float:
    return sum(request.prompt_tokens for request in offered) / len(offered)


def _scaled(row: Recorded, shrink: int) -> Recorded:
    prompt, output = (max(1, round(count / shrink)) for count in (row.prompt_tokens, row.output_tokens))
    return Recorded(row.at, prompt, output, row.blocks)
