"""One request of a replay: what the trace says of it, what its first token may take, and what became of it.

Lengths are the trace's, divided; arrivals are left as they were recorded. Made by `load`, filled in by `replica`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import traces
from benchmarks.step_cost import StepCost
from benchmarks.traces import Recorded

PATIENCE = 3.0


@dataclass(slots=True, eq=False)
class Request:
    """Virtual seconds since the trace began."""

    at: float
    prompt_tokens: int
    output_tokens: int  # one at least
    target_s: float  # to the first token
    first: float | None = None  # when its first token came
    ended: float | None = None
    generated: int = 0  # tokens so far: a sequence that is preempted computes them again with its prompt

    @property
    def ttft(self) -> float:
        assert self.first is not None, "a replay ends when all requests have"
        return self.first - self.at

    @property
    def late(self) -> bool:
        return self.ttft > self.target_s


def target_seconds(cost: StepCost, prompt_tokens: int) -> float:
    """The rule that says which first tokens are in time."""
    return PATIENCE * cost.alone_seconds(prompt_tokens)


def load(path: Path, shrink: int, seconds: float) -> list[Recorded]:
    """A trace, or its beginning, with lengths divided by `shrink`. Raises WorkloadError."""
    return [
        Recorded(row.at, max(1, round(row.prompt_tokens / shrink)), max(1, round(row.output_tokens / shrink)))
        for row in traces.read(path)
        if row.at < seconds
    ]


def make(rows: Sequence[Recorded], cost: StepCost) -> list[Request]:
    """Fresh requests for one run."""
    return [
        Request(row.at, row.prompt_tokens, row.output_tokens, target_seconds(cost, row.prompt_tokens)) for row in rows
    ]


def resampled(rows: Sequence[Recorded], seed: int, window: float = 300.0) -> list[Recorded]:
    """Another hour of the same kind: the trace's windows in another order, and lengths drawn anew from within each window."""
    random_ = random.Random(f"{seed} autoscale")
    parts: list[list[Recorded]] = [[] for _ in range(int(rows[-1].at // window) + 1)]
    for row in rows:
        parts[int(row.at // window)].append(row)
    random_.shuffle(parts)
    return [
        Recorded(number * window + row.at % window, lengths.prompt_tokens, lengths.output_tokens)
        for number, part in enumerate(parts)
        for row, lengths in zip(part, random_.choices(part, k=len(part)), strict=True)
    ]
