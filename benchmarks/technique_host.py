"""The host tier on the real model: what a prompt's first token costs when its blocks are on the device, in the host tier, or gone.

Each is measured alone and beside sequences that decode. Beside them a fetch is hidden: they go on meanwhile. Where the prompt is
computed again, they wait for it in every step. CPU seconds are those of the whole process until the first token. A part of
`memory_techniques`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import real_model
from benchmarks.real_model import RealModel
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.tier_costs import FixedCosts

WAYS = ("device", "host", "computed")


@dataclass(frozen=True, slots=True)
class HostHit:
    """One prompt, asked for the second time."""

    way: str  # where its blocks were: "device", "host", or "computed" for nowhere
    prompt_tokens: int
    neighbours: int
    ttft_s: float
    cpu_s: float
    longest_gap_s: float  # between two tokens of a neighbour meanwhile; 0 without
    fetched_blocks: int
    offloaded_blocks: int


def measure(model: RealModel, lengths: tuple[int, ...], neighbours: int, reps: int) -> list[HostHit]:
    """All ways in turn, so that the machine's moods hit each."""
    return [
        _ask_twice(model, way, length, count, rep)
        for rep in range(reps)
        for length in lengths
        for count in (0, neighbours)
        for way in WAYS
    ]


def _ask_twice(model: RealModel, way: str, length: int, neighbours: int, rep: int) -> HostHit:
    engine = Engine(model.runner, model.limits, SchedulerConfig(), costs=FixedCosts(fetch=way == "host"))
    prompt = _prompt(engine, length, rep)
    engine.add(real_model.request("first", prompt, 1))
    real_model.finish(engine)
    if way != "device":
        _push_out(engine, length)
    for number in range(neighbours):
        engine.add(real_model.request(f"neighbour {number}", _prompt(engine, 16, 1000 + number), 2000))
    for _ in range(3 if neighbours else 0):
        engine.step()
    before = engine.stats()
    engine.add(real_model.request("second", prompt, 1))
    began, cpu, last, longest = time.perf_counter(), time.process_time(), time.perf_counter(), 0.0
    while True:
        outputs = engine.step()
        now = time.perf_counter()
        if any(output.request_id != "second" for output in outputs):
            longest, last = max(longest, now - last), now
        if any(output.request_id == "second" for output in outputs):
            break
    ttft, cpu = now - began, time.process_time() - cpu
    after = engine.stats()
    engine.abort_all()
    return HostHit(
        way,
        length,
        neighbours,
        ttft,
        cpu,
        longest,
        after.fetched_blocks - before.fetched_blocks,
        after.offloaded_blocks - before.offloaded_blocks,
    )


def _push_out(engine: Engine, length: int) -> None:
    """Other prompts take the whole device pool, so what was there goes to the host tier."""
    size = min(length, engine.max_sequence_len - 1)
    for number in range(engine.kv_cache.capacity // size + 1):
        engine.add(real_model.request(f"other {number}", _prompt(engine, size, 5000 + number), 1))
    real_model.finish(engine)


def _prompt(engine: Engine, length: int, number: int) -> tuple[int, ...]:
    return real_model.prompt(engine.limits.vocab_size, length, number)
