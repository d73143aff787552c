"""Paged against reserving `max_model_len` for every sequence, on the same KV memory, with the lengths of a recorded trace.

    python -m benchmarks.paged_vs_contiguous TRACE --steps FILE            the books, at the trace's lengths
    python -m benchmarks.paged_vs_contiguous TRACE --real --shrink 8       the real model, lengths divided by 8

Both ways run on the same engine, with blocks as long as the longest sequence in one of them (`reserving.py`). The memory is what
`--reserved` sequences of the longest request take. All requests wait from the start, so memory is what bounds how many run. The
books need no model (virtual time); the real runs alternate, and their ratio is taken pair by pair.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import machine, offered, real_model, record, step_cost, traces
from benchmarks.measure import ratios
from benchmarks.occupancy import Filling, Occupancy
from benchmarks.offered import VOCAB_SIZE, Offered
from benchmarks.replay_run import Replay, Setting, make
from benchmarks.reserving import ReservingRunner, reserving_limits
from benchmarks.workload_file import WorkloadError
from pagemill.failures import PagemillError
from pagemill_server.config import CacheConfig, EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.ports import ModelRunner

HEADINGS = ["", "blocks of", "sequences at once", "most", "wasted", "without a token", "pool used", "output tokens/s"]


@dataclass(frozen=True, slots=True)
class Result:
    """One way, once."""

    way: str  # "paged" | "contiguous"
    block_size: int
    filling: Filling
    output_tok_s: float


def books(requests: Sequence[Offered], setting: Setting, way: str) -> Result:
    """In virtual time, at the trace's own lengths."""
    replay, seen, before = make(setting), Occupancy(), 0.0

    def watch(replay: Replay) -> None:
        nonlocal before
        seen.look(replay.engine, replay.clock.now - before)
        before = replay.clock.now

    replay.watch = watch
    replay.saturated(requests, len(requests))
    tokens = sum(outcome.tokens for outcome in replay.outcomes.values())
    return Result(way, setting.limits.block_size, seen.figures(), tokens / replay.clock.now)


def real(requests: Sequence[Offered], runner: ModelRunner, limits: EngineLimits, seqs: int, way: str) -> Result:
    """On the real model, as fast as it goes."""
    engine = Engine(runner, limits, SchedulerConfig(max_num_seqs=seqs), prefix_caching=False)
    for one in requests:
        prompt = real_model.prompt(limits.vocab_size, one.prompt_tokens, one.number)
        engine.add(real_model.request(str(one.number), prompt, one.output_tokens))
    seen, tokens = Occupancy(), 0
    began = before = time.perf_counter()
    while engine.has_work:
        tokens += sum(len(output.tokens) for output in engine.step())
        now = time.perf_counter()
        seen.look(engine, now - before)
        before = now
    return Result(way, limits.block_size, seen.figures(), tokens / (before - began))


def count(requests: Sequence[Offered], args: argparse.Namespace) -> list[Result]:
    """The books: paged with each block size, and contiguous."""
    scheduler = SchedulerConfig(max_num_seqs=args.max_num_seqs)
    cost = step_cost.read(args.steps, scheduler.max_num_batched_tokens)
    ways = [("contiguous", pools(requests, args, args.block_sizes[0])[1])]
    ways += [("paged", pools(requests, args, block_size)[0]) for block_size in args.block_sizes]
    settings = [
        (way, Setting(cost, scheduler, CacheConfig(prefix_caching=False), limits, tpot_target=1.0))
        for way, limits in ways
    ]
    return [books(requests, setting, way) for way, setting in settings]


def alternate(requests: Sequence[Offered], args: argparse.Namespace) -> list[Result]:
    """Contiguous, paged, contiguous, … on one model and one pool."""
    block_size = args.block_sizes[0]
    paged, contiguous = pools(requests, args, block_size)
    model = real_model.load(
        args.model, kv_tokens=paged.num_blocks * block_size, block_size=block_size, longest=paged.max_model_len
    )
    paged, contiguous = (replace(limits, vocab_size=model.limits.vocab_size) for limits in (paged, contiguous))
    reserving = ReservingRunner(model.runner, block_size, contiguous.block_size // block_size)
    found = []
    for _ in range(args.reps):
        found.append(real(requests, reserving, contiguous, args.max_num_seqs, "contiguous"))
        found.append(real(requests, model.runner, paged, args.max_num_seqs, "paged"))
        print(f"contiguous {found[-2].output_tok_s:.1f} tokens/s, paged {found[-1].output_tok_s:.1f}", flush=True)
    return found


def pools(requests: Sequence[Offered], args: argparse.Namespace, block_size: int) -> tuple[EngineLimits, EngineLimits]:
    """The same memory, paged and in pieces of the longest request."""
    longest = max(one.prompt_tokens + one.output_tokens for one in requests)
    blocks = args.reserved * -(-longest // block_size)
    paged = EngineLimits(longest, VOCAB_SIZE, blocks, block_size)
    return paged, reserving_limits(paged, longest)[0]


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line())
    try:
        requests = load(args)
        lengths = [one.prompt_tokens + one.output_tokens for one in requests]
        mean = sum(lengths) / len(lengths)
        print(f"{len(requests)} requests of {mean:.0f} tokens on average, {max(lengths)} at most", flush=True)
        found = alternate(requests, args) if args.real else count(requests, args)
    except (WorkloadError, PagemillError) as error:
        sys.stderr.write(f"benchmarks.paged_vs_contiguous: {error}\n")
        return 1
    print(record.table(HEADINGS, [row(one) for one in found]))
    paged = [one for one in found if one.way == "paged"]
    contiguous = [one for one in found if one.way == "contiguous"] * (1 if args.real else len(paged))
    for what, ours, theirs in (
        ("output tokens/s", [one.output_tok_s for one in paged], [one.output_tok_s for one in contiguous]),
        ("sequences at once", [one.filling.sequences for one in paged], [one.filling.sequences for one in contiguous]),
    ):
        found_ratio = ratios(ours, theirs)
        assert found_ratio is not None
        print(f"paged / contiguous, {what}: {found_ratio.median:.2f} ({found_ratio.low:.2f}-{found_ratio.high:.2f})")
    if args.out:
        body = {"trace": args.trace.name, "shrink": args.shrink, "reserved": args.reserved, "real": args.real}
        record.write(args.out, here, {**body, "results": [asdict(one) for one in found]})
    return 0


def load(args: argparse.Namespace) -> list[Offered]:
    """So many requests, evenly spread over the trace; raises WorkloadError."""
    recorded = traces.read(args.trace)
    requests = offered.offer(recorded, seed=1, shrink=args.shrink)
    longest = max(requests, key=lambda one: one.prompt_tokens + one.output_tokens)
    chosen = requests[:: max(1, len(requests) // args.requests)]
    return chosen if longest in chosen else [*chosen, longest]  # what max_model_len is there for


def row(one: Result) -> list[str]:
    filling = one.filling
    return [
        one.way,
        str(one.block_size),
        f"{filling.sequences:.1f}",
        str(filling.most_sequences),
        f"{filling.wasted:.1%}",
        f"{filling.without_token:.1%}",
        f"{filling.used:.1%}",
        f"{one.output_tok_s:.1f}",
    ]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paged_vs_contiguous", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("trace", metavar="TRACE", type=Path, help="whose lengths are taken")
    parser.add_argument(
        "--steps", metavar="FILE", type=Path, help="coefficients, written by benchmarks.fit_step, for the books"
    )
    parser.add_argument("--real", action="store_true", help="run the model and measure tokens per second")
    parser.add_argument(
        "--model", default=real_model.DEMO_MODEL, help=f"with --real (default: {real_model.DEMO_MODEL})"
    )
    parser.add_argument(
        "--requests", type=int, default=None, help="so many of the trace (default: 2000, with --real 80)"
    )
    parser.add_argument("--shrink", type=int, default=1, help="lengths are divided by this (default: 1)")
    parser.add_argument(
        "--reserved", type=int, default=4, help="memory, in sequences of the longest request (default: 4)"
    )
    parser.add_argument("--max-num-seqs", type=int, default=256, help="default: 256, so that memory is the bound")
    parser.add_argument(
        "--block-sizes", type=int, nargs="+", default=[16, 32], help="of paged; with --real the first alone"
    )
    parser.add_argument("--reps", type=int, default=3, help="pairs, with --real (default: 3)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    args = parser.parse_args(argv)
    if not args.real and args.steps is None:
        parser.error("the books need --steps FILE (or add --real to run the model)")
    args.requests = args.requests or (80 if args.real else 2000)
    return args


if __name__ == "__main__":
    sys.exit(main())
