"""Replays a recorded trace through the real engine in virtual time: what each scheduling policy makes of the same hour.

    python -m benchmarks.replay TRACE … --steps benchmarks/results/step-smollm2.json

Engine, scheduler and block pool are the ones that serve; only the model is replaced, by the time that its steps take (`fit_step`).
A fleet's trace is too much for one small machine, so it is stretched in time until it offers `--load` times what the machine can do
at most; that is measured first, by a replay in which the queue is never empty. Clients, priorities and targets are drawn from a
seed, since traces have none: `benchmarks/offered.py` says how.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import machine, offered, record, replay_report, step_cost, traces
from benchmarks.offered import Offered
from benchmarks.replay_figures import Figures, figures
from benchmarks.replay_run import Replay, Setting, limits_for, make
from benchmarks.workload_file import WorkloadError
from pagemill.failures import PagemillError
from pagemill_server.config import CacheConfig, SchedulerConfig

POLICIES = "fcfs,priority,fair,deadline"
TPOT_STEPS = 2.0  # full steps between two tokens that goodput allows, where no target is given
WINDOW_REQUESTS = 200  # that the machine serves in one window of the service ratio


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line())
    try:
        document = [replay_trace(path, args) for path in args.trace]
    except (WorkloadError, PagemillError) as error:
        sys.stderr.write(f"benchmarks.replay: {error}\n")
        return 1
    if args.out:
        record.write(args.out, here, {"command": sys.argv[1:] if argv is None else argv, "traces": document})
    return 0


def replay_trace(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All policies on one trace; prints a row as each comes."""
    requests = load(path, args)
    setting = make_setting(requests, args)
    print(f"\n{path.name.partition('.')[0]}: {replay_report.describe(requests, setting)}", flush=True)
    most = capacity(requests, setting)
    span = requests[-1].at
    rate = len(requests) / most.span_s
    stretch = args.stretch or len(requests) / (span * rate * args.load)
    setting = replace(setting, window=WINDOW_REQUESTS / rate, scheduler=stretched(setting.scheduler, stretch))
    offered_load = len(requests) / (span * stretch) / rate
    print(
        f"at most {rate:.3f} requests/s, {most.output_tok_s:.0f} output tokens/s; "
        f"stretched {stretch:.1f} times: load {offered_load:.2f}, {span * stretch / 3600:.1f} h"
    )
    found: list[Figures] = []
    for policy in args.policies.split(","):
        found.append(run(policy, requests, setting, stretch))
        print(replay_report.progress(found[-1]), flush=True)
    print(replay_report.table(found))
    return {
        "trace": path.name,
        "setting": {"scheduler": asdict(setting.scheduler), "limits": asdict(setting.limits), "shrink": args.shrink},
        "steps": step_cost.as_json(setting.cost),
        "tpot_target_s": setting.tpot_target,
        "stretch": stretch,
        "load": offered_load,
        "saturated": asdict(most),
        "policies": [asdict(one) for one in found],
    }


def stretched(config: SchedulerConfig, stretch: float) -> SchedulerConfig:
    """What is set in seconds: on a machine that is so many times slower, clients are so many times more patient."""
    return replace(
        config,
        aging_seconds=config.aging_seconds * stretch,
        ttft_ms=config.ttft_ms * stretch,
        bypass_seconds=config.bypass_seconds * stretch,
    )


def capacity(requests: Sequence[Offered], setting: Setting) -> Figures:
    """What the machine can do at most: the same requests in the same order, and the queue never empty."""
    return _timed("fcfs", setting, lambda replay: replay.saturated(requests, 2 * setting.scheduler.max_num_seqs))


def run(policy: str, requests: Sequence[Offered], setting: Setting, stretch: float) -> Figures:
    """One policy; raises PagemillError for one that there isn't."""
    return _timed(policy, setting, lambda replay: replay.in_time(requests, stretch))


def _timed(policy: str, setting: Setting, drive: Callable[[Replay], None]) -> Figures:
    replay = make(replace(setting, scheduler=replace(setting.scheduler, policy=policy)))
    began = time.process_time()
    drive(replay)
    return figures(replay, time.process_time() - began)


def load(path: Path, args: argparse.Namespace) -> list[Offered]:
    """The part of the trace that is asked for; raises WorkloadError when it is empty."""
    recorded = [row for row in traces.read(path) if row.at < args.seconds]
    requests = offered.offer(recorded, args.seed, args.shrink, args.longest)
    if len(requests) < 2:
        raise WorkloadError(f"{path} has no two requests of at most {args.longest} tokens in {args.seconds:g} s")
    return requests


def make_setting(requests: Sequence[Offered], args: argparse.Namespace) -> Setting:
    """What all policies have in common. Raises WorkloadError."""
    scheduler = SchedulerConfig(max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens)
    cost = step_cost.read(args.steps, args.max_num_batched_tokens)
    limits = limits_for(
        requests, args.kv_tokens // args.block_size, args.block_size, args.host_tokens // args.block_size
    )
    cache = CacheConfig(block_size=args.block_size, prefix_caching=args.prefix_caching)
    return Setting(cost, scheduler, cache, limits, args.tpot_target or TPOT_STEPS * cost.full_step)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "trace", metavar="TRACE", type=Path, nargs="+", help="Azure CSV or Mooncake JSON lines, plain or gzipped"
    )
    parser.add_argument(
        "--steps", metavar="FILE", type=Path, required=True, help="coefficients, written by benchmarks.fit_step"
    )
    parser.add_argument("--policies", default=POLICIES, metavar="A,B", help=f"default: {POLICIES}")
    for flag, kind, default, text in (
        ("--load", float, 0.7, "offered, as a share of what the machine can do at most"),
        ("--stretch", float, None, "arrivals are so many times further apart, instead of --load"),
        ("--seconds", float, 3600.0, "of the trace, from its beginning"),
        ("--shrink", int, 1, "lengths are divided by this (of Mooncake's shared 512-token blocks too)"),
        ("--longest", int, 16384, "longer requests are left out, tokens after --shrink"),
        ("--kv-tokens", int, 93184, "KV cache (SmolLM2-135M in float32: 4 GiB)"),
        ("--host-tokens", int, 0, "host tier"),
        ("--block-size", int, 32, "tokens"),
        ("--max-num-seqs", int, 64, "as `pagemill serve` has it"),
        ("--max-num-batched-tokens", int, 512, "as `pagemill serve` has it"),
        ("--tpot-target", float, None, "seconds between tokens that goodput allows; left out: two full steps"),
        ("--seed", int, 1, "of clients and classes"),
    ):
        shown = text if default is None else f"{text} (default: {default:g})"
        parser.add_argument(flag, metavar="N", type=kind, default=default, help=shown)
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false", help="share nothing")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    args = parser.parse_args(argv)
    for flag in ("load", "shrink", "block_size", "max_num_seqs", "max_num_batched_tokens", "kv_tokens"):
        if getattr(args, flag) <= 0:
            parser.error(f"--{flag.replace('_', '-')} must be above 0")
    return args


if __name__ == "__main__":
    sys.exit(main())
