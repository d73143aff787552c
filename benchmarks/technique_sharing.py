"""Prefix sharing on and off, on the real model: many short questions behind one long system prompt (w3's lengths).

A part of `memory_techniques`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import real_model
from benchmarks.measure import quantile
from benchmarks.real_model import RealModel
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import Engine

AT_ONCE = 8  # requests
OWN, OUT = 30, 32  # tokens of each


@dataclass(frozen=True, slots=True)
class Shared:
    """One run of all questions."""

    sharing: bool
    ttft_p50_s: float
    ttft_p99_s: float
    output_tok_s: float
    hit_rate: float
    most_blocks: int  # held at once
    wall_s: float


def measure(model: RealModel, requests: int, reps: int, shared: int = 400) -> list[Shared]:
    """Off, on, off, … so that the machine's moods hit both."""
    return [_run(model, requests, rep, shared, sharing=sharing) for rep in range(reps) for sharing in (False, True)]


def _run(model: RealModel, requests: int, rep: int, shared: int, *, sharing: bool) -> Shared:
    engine = Engine(model.runner, model.limits, SchedulerConfig(), prefix_caching=sharing)
    vocab = model.limits.vocab_size
    system = real_model.prompt(vocab, shared, 1_000_000 + rep)
    waiting = [(str(number), (*system, *real_model.prompt(vocab, OWN, number))) for number in range(requests)]
    sent: dict[str, float] = {}
    ttft: list[float] = []
    tokens = most = 0
    began = time.perf_counter()
    while waiting or engine.has_work:
        while waiting and _open(engine) < AT_ONCE:
            name, prompt = waiting.pop(0)
            sent[name] = time.perf_counter()
            engine.add(real_model.request(name, prompt, OUT))
        outputs = engine.step()
        most = max(most, engine.kv_cache.num_held)
        for output in outputs:
            tokens += len(output.tokens)
            if output.first_scheduled is not None:
                ttft.append(time.perf_counter() - sent[output.request_id])
    wall = time.perf_counter() - began
    stats = engine.stats()
    return Shared(
        sharing,
        quantile(ttft, 0.5) or 0.0,
        quantile(ttft, 0.99) or 0.0,
        tokens / wall,
        stats.prefix_cache_hits / max(1, stats.prefix_cache_queries),
        most,
        wall,
    )


def _open(engine: Engine) -> int:
    roster = engine.scheduler.roster
    return len(roster.running) + roster.num_waiting
