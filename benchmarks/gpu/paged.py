"""Batch 8 → 32: the memory of eight sequences of the longest length, contiguous and paged. `python -m benchmarks.gpu.paged MODEL`.

On one loaded model and one pool, in turn: the contiguous way reserves the longest length for each sequence, so eight run at once;
the paged way lets 32 run as long as blocks last (`benchmarks.reserving`). Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import real_model
from benchmarks.reserving import ReservingRunner, reserving_limits
from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.ports import ModelRunner

RESERVED, BATCH = 8, 32  # sequences: that the memory holds at their longest, and that may run
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, tokens."""

    requests: int = 64
    longest: int = 2048
    prompt: tuple[int, int] = (64, 320)  # from, to
    output: int = 128


@dataclass(frozen=True, slots=True)
class Outcome:
    way: str
    most_at_once: int  # sequences
    output_tok_s: float
    seconds: float


def limits_of(load: Load, vocab: int) -> tuple[EngineLimits, EngineLimits]:
    """The same memory, paged and contiguous."""
    paged = EngineLimits(load.longest, vocab, RESERVED * -(-load.longest // BLOCK), BLOCK)
    return paged, reserving_limits(paged, load.longest)[0]


def run(runner: ModelRunner, limits: EngineLimits, load: Load, way: str) -> Outcome:
    """All requests wait from the start."""
    scheduler = SchedulerConfig(max_num_seqs=BATCH, max_num_batched_tokens=2048)
    engine = Engine(runner, limits, scheduler, prefix_caching=False)
    low, high = load.prompt
    for number in range(load.requests):
        length = low + number * 37 % (high - low)
        prompt = real_model.prompt(limits.vocab_size, length, number)
        engine.add(real_model.request(f"{way}-{number}", prompt, load.output))
    began, tokens, most = time.perf_counter(), 0, 0
    while engine.has_work:
        tokens += sum(len(output.tokens) for output in engine.step())
        most = max(most, engine.stats().num_running)
    seconds = time.perf_counter() - began
    return Outcome(way, most, tokens / seconds, seconds)


def both(runner: ModelRunner, vocab: int, load: Load, reps: int) -> list[Outcome]:
    """Contiguous, paged, contiguous, …"""
    paged, contiguous = limits_of(load, vocab)
    reserving = ReservingRunner(runner, BLOCK, contiguous.block_size // BLOCK)
    found = []
    for _ in range(reps):
        found.append(run(reserving, contiguous, load, "contiguous"))
        found.append(run(runner, paged, load, "paged"))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.paged")
    parser.add_argument("model", type=Path)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args(argv)
    from pagemill_server.model.load import load_runner  # torch, in seconds

    load = Load()
    files = inspect(args.model)
    runner, limits, _ = load_runner(
        files,
        ModelOptions(str(args.model), ("m",), device="cuda", max_model_len=load.longest),
        CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9),
        SchedulerConfig(max_num_seqs=BATCH, max_num_batched_tokens=2048),
        lambda done, total: None,
    )
    wanted = limits_of(load, limits.vocab_size)[0].num_blocks
    if limits.num_blocks < wanted:  # a small GPU: shorter sequences, the same proportions
        load = replace(load, longest=limits.num_blocks // RESERVED * BLOCK)
    found = both(runner, limits.vocab_size, load, args.reps)
    sys.stdout.write(json.dumps({"load": asdict(load), "results": [asdict(one) for one in found]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
