"""What scaling needs of one replica's /metrics page, by prometheus_client's own parser. Pure.

Only the lines that matter are handed to the parser: it takes a page's fifteen milliseconds otherwise, and there may be thousands of
pages. Knows no deployment and no time. Called by `samples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics
from pagemill_operator.queries import GAUGES

_TTFT_BUCKET = f"{metrics.TIME_TO_FIRST_TOKEN}_bucket"
_WANTED = tuple(name + end for name in (*GAUGES.values(), metrics.PREEMPTIONS, _TTFT_BUCKET) for end in "{ \t")


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows while a server lives."""

    preemptions: float = 0.0
    ttft: tuple[tuple[float, float], ...] = ()  # (upper bound in seconds, requests at or below it), by bound


@dataclass(frozen=True, slots=True)
class Page:
    """One replica's."""

    gauges: Mapping[str, tuple[float, ...]]  # by signal: the values of its series, of which there should be one
    counters: Counters


def parse(text: str) -> Page:
    """Raises ValueError where the page is not in Prometheus' text format."""
    gauges: dict[str, list[float]] = {signal: [] for signal in GAUGES}
    signals = {metric: signal for signal, metric in GAUGES.items()}
    preemptions, ttft = 0.0, dict[float, float]()
    try:
        for family in text_string_to_metric_families(_wanted_lines(text)):
            for sample in family.samples:
                if sample.name in signals:
                    gauges[signals[sample.name]].append(float(sample.value))
                elif sample.name == metrics.PREEMPTIONS:
                    preemptions += sample.value
                elif sample.name == _TTFT_BUCKET:
                    bound = float(sample.labels["le"])
                    ttft[bound] = ttft.get(bound, 0.0) + sample.value
    except (KeyError, IndexError) as error:  # a broken line: not all that the parser stumbles over is a ValueError
        raise ValueError(str(error)) from error
    found = {signal: tuple(values) for signal, values in gauges.items()}
    return Page(found, Counters(preemptions, tuple(sorted(ttft.items()))))


def _wanted_lines(text: str) -> str:
    """Without comments each line stands for itself."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_WANTED))
