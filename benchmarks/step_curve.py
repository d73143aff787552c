"""Throughput against latency over `max_num_seqs` and `max_num_batched_tokens`, on the real model.

    python -m benchmarks.step_curve

The same requests for every setting. Queued all at once they show the most tokens per second; arriving at `--rate` they show what a
user waits for: the first token, and between two tokens, where another's prompt is felt.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import machine, real_model, record
from benchmarks.measure import quantile
from benchmarks.real_model import RealModel
from benchmarks.workloads import lognormal_lengths
from pagemill.failures import PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the workload."""

    at: float  # seconds
    prompt: tuple[int, ...]
    output: int


@dataclass(slots=True)
class Got:
    """When its tokens came."""

    at: float
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Point:
    """One setting."""

    max_num_seqs: int
    max_num_batched_tokens: int
    most_tok_s: float  # output tokens, all requests queued at once
    ttft_p50_s: float | None  # the rest: arriving in time
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    itl_p99_s: float | None
    paced_tok_s: float


def workload(count: int, rate: float, output: int, vocab_size: int, longest: int = 512, seed: int = 1) -> list[Asked]:
    """Prompts as chat has them (lognormal, from 16 tokens, mean 142 where 512 are allowed), Poisson arrivals."""
    lengths = lognormal_lengths(count, median=110, sigma=0.75, least=16, most=longest)
    random_ = random.Random(f"{seed} step curve")
    random_.shuffle(lengths)
    asked, at = [], 0.0
    for number, length in enumerate(lengths):
        at += random_.expovariate(rate)
        asked.append(Asked(at, real_model.prompt(vocab_size, length, number), output))
    return asked


def play(model: RealModel, config: SchedulerConfig, asked: Sequence[Asked], *, in_time: bool) -> list[Got]:
    """Run them through an engine of its own, at their times or all at once."""
    engine = Engine(model.runner, model.limits, config, prefix_caching=False)
    waiting = list(reversed(asked))
    got: dict[str, Got] = {}
    began = time.perf_counter()
    while waiting or engine.has_work:
        now = time.perf_counter() - began
        while waiting and (not in_time or waiting[-1].at <= now):
            one = waiting.pop()
            name = str(len(got))
            got[name] = Got(one.at if in_time else 0.0)
            engine.add(real_model.request(name, one.prompt, one.output))
        if not engine.has_work:
            time.sleep(max(0.0, waiting[-1].at - now))
            continue
        outputs = engine.step()
        now = time.perf_counter() - began
        for output in outputs:
            got[output.request_id].times += [now] * len(output.tokens)
    return list(got.values())


def measure(model: RealModel, asked: Sequence[Asked], seqs: int, budget: int) -> Point:
    config = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget)
    at_once, paced = play(model, config, asked, in_time=False), play(model, config, asked, in_time=True)
    ttft = [one.times[0] - one.at for one in paced]
    tpot = [(one.times[-1] - one.times[0]) / (len(one.times) - 1) for one in paced if len(one.times) > 1]
    gaps = [later - sooner for one in paced for sooner, later in zip(one.times, one.times[1:], strict=False)]
    return Point(
        seqs,
        budget,
        _rate(at_once),
        quantile(ttft, 0.5),
        quantile(ttft, 0.99),
        quantile(tpot, 0.5),
        quantile(gaps, 0.99),
        _rate(paced),
    )


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        widest = SchedulerConfig(max_num_seqs=max(args.seqs), max_num_batched_tokens=max(args.budgets))
        model = real_model.load(args.model, kv_tokens=min(64, max(args.seqs)) * 640, scheduler=widest)
    except PagemillError as error:
        sys.stderr.write(f"benchmarks.step_curve: {error}\n")
        return 1
    asked = workload(args.requests, args.rate, args.output, model.limits.vocab_size, args.longest)
    play(model, widest, asked[:8], in_time=False)  # what only a first run pays
    points = []
    for seqs in args.seqs:
        for budget in args.budgets:
            points.append(measure(model, asked, seqs, budget))
            print(record.table(HEADINGS, [_row(points[-1])]).splitlines()[-1], flush=True)
    print(record.table(HEADINGS, [_row(point) for point in points]))
    if args.out:
        body = {"requests": args.requests, "rate": args.rate, "output": args.output}
        record.write(args.out, here, {**body, "points": [asdict(point) for point in points]})
    return 0


HEADINGS = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "most output tokens/s",
    "TTFT p50 / p99 ms",
    "TPOT p50 ms",
    "between tokens p99 ms",
]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_curve", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", default=real_model.DEMO_MODEL, help=f"default: {real_model.DEMO_MODEL}")
    parser.add_argument("--seqs", type=int, nargs="+", default=[1, 4, 16, 64], help="max_num_seqs to try")
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="max_num_batched_tokens"
    )
    parser.add_argument("--requests", type=int, default=48, help="default: 48")
    parser.add_argument("--longest", type=int, default=512, help="prompt, tokens (default: 512)")
    parser.add_argument("--output", type=int, default=32, help="tokens each (default: 32)")
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals a second (default: 1)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    return parser.parse_args(argv)


def _rate(got: Sequence[Got]) -> float:
    return sum(len(one.times) for one in got) / (max(one.times[-1] for one in got) - min(one.at for one in got))


def _row(point: Point) -> list[str]:
    ttft50, ttft99, tpot, gap = (
        "-" if value is None else f"{value * 1e3:.0f}"
        for value in (point.ttft_p50_s, point.ttft_p99_s, point.tpot_p50_s, point.itl_p99_s)
    )
    return [
        str(point.max_num_seqs),
        str(point.max_num_batched_tokens),
        f"{point.most_tok_s:.1f}",
        f"{ttft50} / {ttft99}",
        tpot,
        gap,
    ]


if __name__ == "__main__":
    sys.exit(main())
