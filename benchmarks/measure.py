"""From the times of single requests to the figures of a run, and from runs to a row. Pure arithmetic, times in seconds.

    TTFT  from sending a request to its first streamed chunk that carries output
    ITL   between two successive chunks of one request
    TPOT  (last chunk - first chunk) / (output tokens - 1): does not depend on how a server packs tokens into chunks
    E2E   from sending a request to its end

Token counts are the server's own (`usage`). Called by `client` and `serve`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """What one request did; filled by the client. Times count from the start of the run."""

    start: float
    wanted_tokens: int
    end: float = 0.0
    chunks: list[float] = field(default_factory=list)  # when output came, streaming only
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.chunks[0] - self.start if self.chunks else None

    @property
    def itl(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        if len(self.chunks) < 2 or self.output_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one repetition. None where nothing was streamed, or nothing came back."""

    requests: int
    failed: int
    short: int  # requests that ended with fewer or more tokens than they asked for
    wall_s: float  # from the first request to the last reply
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    output_tok_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    errors: tuple[str, ...] = ()


def quantile(values: Iterable[float], share: float) -> float | None:
    """Between the neighbours by linear interpolation (numpy's default); None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(samples: Sequence[Sample]) -> Run:
    """The figures of one repetition; requests that failed count as failed and nowhere else."""
    good = [sample for sample in samples if sample.error is None]
    wall = max(sample.end for sample in samples) - min(sample.start for sample in samples)
    output = sum(sample.output_tokens for sample in good)
    ttft = [value for sample in good if (value := sample.ttft) is not None]
    tpot = [value for sample in good if (value := sample.tpot) is not None]
    itl = [gap for sample in good for gap in sample.itl]
    e2e = [sample.end - sample.start for sample in good]
    return Run(
        requests=len(samples),
        failed=len(samples) - len(good),
        short=sum(sample.output_tokens != sample.wanted_tokens for sample in good),
        wall_s=wall,
        prompt_tokens=sum(sample.prompt_tokens for sample in good),
        output_tokens=output,
        cached_tokens=sum(sample.cached_tokens for sample in good),
        output_tok_s=output / wall if wall > 0 else 0.0,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        tpot_p50_s=quantile(tpot, 0.5),
        itl_p50_s=quantile(itl, 0.5),
        itl_p99_s=quantile(itl, 0.99),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p99_s=quantile(e2e, 0.99),
        errors=tuple(sorted({sample.error for sample in samples if sample.error}))[:5],
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repetitions."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and most of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Spread | None:
    """Ours over theirs, pair by pair: what a machine does to both runs of a pair cancels out."""
    return spread(a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b)
