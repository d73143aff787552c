"""Which figures `speed` shows, which way is better, what is aimed at, and the table of them. Pure: values in, lines out.

A ratio is ours over the best peer's, rep by rep of one run, and its median; the best peer is that with the best median.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure import Run

OURS, INT8 = "pagemill", "pagemill-int8"

# What was measured: by figure and contestant, one value a repetition.
Values = Mapping[tuple[str, str], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A row. `aim` is the ratio that is wanted: at least that much where more is better, else at most."""

    name: str
    unit: str
    more_is_better: bool
    aim: float | None
    ours: str = OURS
    against: str | None = None  # one peer, where the aim names it

    @property
    def key(self) -> str:
        """int8's figure is of the same values as that of 16 bits."""
        return self.name.removesuffix(", int8")


FIGURES = (
    Figure("W1 output", "tok/s", True, 1.25),
    Figure("W1 of the roofline", "%", True, None),
    Figure("W2 TTFT p50", "ms", False, None),
    Figure("W2 TPOT", "ms", False, None),
    Figure("W2 decode", "tok/s", True, 1.25),
    Figure("W2 decode, int8", "tok/s", True, 2.0, ours=INT8),
    Figure("W3 output", "tok/s", True, 1.25),
    Figure("W3 TTFT p50", "ms", False, None),
    Figure("W3 TTFT p99", "ms", False, 1.0),
    Figure("W4 TTFT p50", "ms", False, 1.0),
    Figure("W4 TTFT p99", "ms", False, 1.0),
    Figure("W4 ITL p50", "ms", False, 1.0),
    Figure("W4 ITL p99", "ms", False, 1.0),
    Figure("W5 sentences", "1/s", True, 1.25),
    Figure("start to first token", "s", False, 1.0, against="openvino"),
    Figure("peak memory", "GB", False, 1.0),
)


def of_run(workload: str, run: Run) -> dict[str, float]:
    """A repetition's values by figure; a run that failed in part has none."""
    if run.failed or run.short:
        return {}
    found: dict[str, float | None] = {}
    if workload in ("w1", "w3"):
        found[f"{workload.upper()} output"] = run.output_tok_s
    if workload == "w2":
        found["W2 TPOT"] = _ms(run.tpot_p50_s)
        found["W2 decode"] = 1 / run.tpot_p50_s if run.tpot_p50_s else None
    if workload != "w1":
        found[f"{workload.upper()} TTFT p50"] = _ms(run.ttft_p50_s)
        found[f"{workload.upper()} TTFT p99"] = _ms(run.ttft_p99_s)
        found[f"{workload.upper()} ITL p50"] = _ms(run.itl_p50_s)
        found[f"{workload.upper()} ITL p99"] = _ms(run.itl_p99_s)
    return {name: value for name, value in found.items() if value is not None}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours against the best peer."""

    peer: str
    ratio: float
    met: bool | None  # None: nothing is aimed at


def verdict(figure: Figure, values: Values) -> Verdict | None:
    """None where ours or every peer's is missing."""
    ours = values.get((figure.key, figure.ours), ())
    rivals = {
        name: theirs
        for (key, name), theirs in values.items()
        if key == figure.key and theirs and not name.startswith(OURS) and figure.against in (None, name)
    }
    if not ours or not rivals:
        return None
    best = max if figure.more_is_better else min
    peer = best(rivals, key=lambda name: statistics.median(rivals[name]))
    ratio = statistics.median(a / b for a, b in zip(ours, rivals[peer], strict=False))
    if figure.aim is None:
        return Verdict(peer, ratio, None)
    return Verdict(peer, ratio, ratio >= figure.aim if figure.more_is_better else ratio <= figure.aim)


def table(contestants: Sequence[str], values: Values) -> list[str]:
    """The rows for which anything was measured, under a header. Medians, the least and the most behind them."""
    rows = [["figure", *contestants, "ours / best peer", "aim", ""]]
    for figure in FIGURES:
        cells = [_cell(values.get((figure.key, name), ())) for name in contestants]
        if not any(cells):
            continue
        found = verdict(figure, values)
        ratio = f"{found.ratio:.2f} ({found.peer})" if found else ""
        word = "" if found is None or found.met is None else ("met" if found.met else "not met")
        rows.append([f"{figure.name}, {figure.unit}", *cells, ratio, _aim(figure), word])
    return list(_aligned(rows))


def _aim(figure: Figure) -> str:
    if figure.aim is None:
        return "60%" if figure.name == "W1 of the roofline" else ""
    return f"{'>=' if figure.more_is_better else '<='} {figure.aim:.2f}"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    median, low, high = (_number(value) for value in (statistics.median(values), min(values), max(values)))
    return median if low == high else f"{median} ({low}-{high})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
