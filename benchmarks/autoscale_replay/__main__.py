"""`python -m benchmarks.autoscale_replay --traces DIR`: a table a trace, on one simulated fleet.

A row for the operator's decisions with its defaults, then an HPA, a KEDA rule and a fixed fleet at as many replica-hours, then
both rules with usual targets. Time is the trace's own; lengths are divided, so that replicas of a small model on few cores make a
fleet of 4 to 20 at its peak. docs/benchmarks.md says what is simulated and how.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine, record, step_cost
from benchmarks.autoscale_replay import request
from benchmarks.autoscale_replay.compare import compare, setting
from benchmarks.autoscale_replay.figures import Figures, fewer_late, table
from benchmarks.autoscale_replay.fleet import FleetConfig
from benchmarks.autoscale_replay.replica import ReplicaConfig
from benchmarks.traces import Recorded
from benchmarks.workload_file import WorkloadError
from pagemill_operator.spec_scaling import Autoscaling

TRACES = {  # file → what its lengths are divided by
    "azure-conv-2023.csv.gz": 4,
    "azure-code-2023.csv.gz": 8,
    "mooncake-conversation-2025.jsonl.gz": 32,
}
STEPS = Path(__file__).parents[1] / "results" / "step-smollm2.json"
BUDGET = 512  # tokens a step, as `pagemill serve` has it


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        cost = step_cost.read(args.steps, BUDGET)
        replica = ReplicaConfig(cost, num_blocks=args.kv_tokens // 32)
        fleet = FleetConfig(replica, args.load_seconds, max_replicas=args.max_replicas)
        document = [one for name in args.only or TRACES for one in replay(name, fleet, args)]
    except WorkloadError as error:
        sys.stderr.write(f"benchmarks.autoscale_replay: {error}\n")
        return 1
    if args.out:
        shown = {"steps": cost.origin, "load_seconds": args.load_seconds, "max_replicas": args.max_replicas}
        record.write(args.out, here, {**shown, "patience": request.PATIENCE, "traces": document})
    return 0


def replay(name: str, fleet: FleetConfig, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The trace itself, and as many others made of it as are asked for; prints a table each."""
    rows = request.load(args.traces / name, TRACES.get(name, 1), args.seconds)
    made: list[tuple[str, Sequence[Recorded]]] = [("", rows)]
    made += [(f", resampled {seed}", request.resampled(rows, seed)) for seed in range(1, args.resampled + 1)]
    return [_replay(f"{name.partition('.')[0]}{suffix}", some, TRACES.get(name, 1), fleet) for suffix, some in made]


def _replay(title: str, rows: Sequence[Recorded], shrink: int, fleet: FleetConfig) -> dict[str, Any]:
    began = time.process_time()
    one = setting(rows, fleet)
    found: list[Figures] = list(compare(one, Autoscaling.model_validate({"maxReplicas": fleet.max_replicas})))
    prompt = sum(row.prompt_tokens for row in rows) / len(rows)
    output = sum(row.output_tokens for row in rows) / len(rows)
    print(
        f"\n{title}: {len(rows)} requests, {prompt:.0f} tokens in and {output:.0f} out on average (lengths divided by {shrink}), "
        f"{one.mean_load:.1f} replicas busy on average, {one.start} at the start, a replica loads for {fleet.load_s:g} s"
    )
    print(table(found))
    print(
        f"fewer late than the better of both rules: {fewer_late(found):.0%} ({time.process_time() - began:.0f} s of CPU)",
        flush=True,
    )
    return {
        "trace": title,
        "shrink": shrink,
        "mean_load": one.mean_load,
        "start": one.start,
        "fewer_late": fewer_late(found),
        "rows": [asdict(row) for row in found],
    }


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscale_replay", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--traces", metavar="DIR", type=Path, required=True, help="the folder of the recorded traces")
    parser.add_argument("--only", metavar="FILE", nargs="+", help=f"some of it (default: {', '.join(TRACES)})")
    parser.add_argument(
        "--steps", metavar="FILE", type=Path, default=STEPS, help="what a step takes, by benchmarks.fit_step"
    )
    for flag, kind, default, text in (
        (
            "--load-seconds",
            float,
            3.6,
            "from wanting a replica until it serves (default: the CPU image with SmolLM2-135M)",
        ),
        ("--max-replicas", int, 20, "for everybody"),
        ("--kv-tokens", int, 23296, "KV cache (SmolLM2-135M in float32: 1 GiB)"),
        ("--seconds", float, 3600.0, "of each trace"),
        ("--resampled", int, 0, "and so many other hours made of each trace"),
    ):
        parser.add_argument(flag, metavar="N", type=kind, default=default, help=f"{text} (default: {default:g})")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
