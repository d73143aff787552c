"""Rows for people: one a workload and server, medians with the least and the most over the repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.measure import Run, Spread, ratios, spread

# heading, field of Run, what a second is shown as
COLUMNS = (
    ("out tok/s", "output_tok_s", 1.0),
    ("TTFT p50 ms", "ttft_p50_s", 1e3),
    ("TTFT p99 ms", "ttft_p99_s", 1e3),
    ("TPOT ms", "tpot_p50_s", 1e3),
    ("ITL p50 ms", "itl_p50_s", 1e3),
    ("ITL p99 ms", "itl_p99_s", 1e3),
    ("wall s", "wall_s", 1.0),
)
_WIDTHS = (8, 10, *(22 for _ in COLUMNS), 6)


def header() -> str:
    return _line(["workload", "server", *(heading for heading, _, _ in COLUMNS), "failed"])


def row(workload: str, server: str, runs: Sequence[Run]) -> str:
    """Medians over the repetitions of one server."""
    cells = [_cell(spread(getattr(run, name) for run in runs), scale) for _, name, scale in COLUMNS]
    return _line([workload, server, *cells, str(sum(run.failed for run in runs))])


def ratio_row(workload: str, ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    """The first server over the second, pair by pair."""
    cells = []
    for _, name, _ in COLUMNS:
        found = ratios([getattr(run, name) for run in ours], [getattr(run, name) for run in theirs])
        cells.append(_cell(found, 1.0, digits=2))
    return _line([workload, "A / B", *cells, ""])


def as_json(runs: Sequence[Run]) -> list[dict[str, object]]:
    return [asdict(run) for run in runs]


def _cell(value: Spread | None, scale: float, digits: int = 1) -> str:
    if value is None:
        return "-"
    median, low, high = (f"{number * scale:.{digits}f}" for number in (value.median, value.low, value.high))
    return median if low == high else f"{median} ({low}-{high})"


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
