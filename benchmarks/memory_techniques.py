"""Each technique of the KV memory on and off: sharing, taking the pool at the start, least recently used, the host tier.

python -m benchmarks.memory_techniques sharing                                  the real model: TTFT, tokens/s, blocks held
python -m benchmarks.memory_techniques start                                    seconds and touched memory of a pool
python -m benchmarks.memory_techniques kept --trace TRACE --steps FILE          hit rates of a trace, in virtual time
python -m benchmarks.memory_techniques host                                     the real model: TTFT by where the blocks were
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import (
    machine,
    offered,
    real_model,
    record,
    step_cost,
    technique_host,
    technique_replay,
    technique_sharing,
    technique_start,
    traces,
)
from benchmarks.measure import ratios
from benchmarks.workload_file import WorkloadError
from pagemill import model_source
from pagemill.failures import PagemillError
from pagemill.sizes import format_size


def sharing(args: argparse.Namespace) -> Sequence[Any]:
    model = real_model.load(args.model, kv_tokens=16384)
    found = technique_sharing.measure(model, args.requests, args.reps)
    rows = []
    for one in (False, True):
        runs = [run for run in found if run.sharing is one]
        cells = [
            f"{_median(runs, field):.{digits}f}"
            for field, digits in (("ttft_p50_s", 2), ("ttft_p99_s", 2), ("output_tok_s", 1))
        ]
        rows.append(
            ["on" if one else "off", *cells, f"{_median(runs, 'hit_rate'):.1%}", f"{_median(runs, 'most_blocks'):.0f}"]
        )
    print(
        record.table(["sharing", "TTFT p50 s", "TTFT p99 s", "output tokens/s", "hit rate", "most blocks held"], rows)
    )
    on, off = ([run.output_tok_s for run in found if run.sharing is one] for one in (True, False))
    print(f"on / off, output tokens/s: {ratios(on, off)}")
    return found


def start(args: argparse.Namespace) -> Sequence[Any]:
    files = model_source.find(args.model)
    if files is None:
        raise WorkloadError(f"{args.model} is not on this machine")
    found = technique_start.measure(files.config, args.tokens)
    rows = [
        [one.way, format_size(one.size_bytes), f"{one.seconds:.3f}", format_size(one.touched_bytes)] for one in found
    ]
    print(record.table(["pool", "size", "seconds", "touched"], rows))
    return found


def kept(args: argparse.Namespace) -> Sequence[Any]:
    requests = offered.offer(traces.read(args.trace), seed=1, shrink=args.shrink, longest=16384)
    cost = step_cost.read(args.steps, 512)
    found = technique_replay.measure(requests, cost, args.kv_tokens, args.host_tokens)
    rows = [
        [
            one.way,
            str(one.device_tokens),
            str(one.host_tokens),
            f"{one.hit_rate:.1%}",
            f"{one.host_hit_rate:.1%}",
            f"{one.requests_s:.3f}",
        ]
        for one in found
    ]
    print(
        record.table(
            ["blocks are", "device tokens", "host tokens", "hit rate", "of it host", "requests/s at most"], rows
        )
    )
    return found


def host(args: argparse.Namespace) -> Sequence[Any]:
    longest = max(args.lengths)
    tokens = 2 * longest + args.neighbours * 256
    model = real_model.load(args.model, kv_tokens=tokens, host_tokens=4 * tokens)
    found = technique_host.measure(model, tuple(args.lengths), args.neighbours, args.reps)
    rows = []
    for length in args.lengths:
        for neighbours in (0, args.neighbours):
            for way in technique_host.WAYS:
                runs = [
                    one for one in found if (one.prompt_tokens, one.neighbours, one.way) == (length, neighbours, way)
                ]
                cells = [f"{_median(runs, field) * 1e3:.0f}" for field in ("ttft_s", "cpu_s", "longest_gap_s")]
                moved = [f"{_median(runs, field):.0f}" for field in ("fetched_blocks", "offloaded_blocks")]
                rows.append([str(length), str(neighbours), way, *cells, *moved])
    print(
        record.table(
            [
                "prompt",
                "decoding beside",
                "blocks were",
                "TTFT ms",
                "CPU ms",
                "neighbour's longest gap ms",
                "fetched",
                "offloaded",
            ],
            rows,
        )
    )
    return found


COMMANDS: dict[str, Callable[[argparse.Namespace], Sequence[Any]]] = {
    "sharing": sharing,
    "start": start,
    "kept": kept,
    "host": host,
}


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        found = COMMANDS[args.technique](args)
    except (WorkloadError, PagemillError) as error:
        sys.stderr.write(f"benchmarks.memory_techniques: {error}\n")
        return 1
    if args.out:
        settings = {key: str(value) for key, value in vars(args).items() if key != "out"}
        record.write(args.out, here, {"settings": settings, "results": [asdict(one) for one in found]})
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_techniques", description=(__doc__ or "").partition("\n")[0]
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default=real_model.DEMO_MODEL, help=f"default: {real_model.DEMO_MODEL}")
    common.add_argument("--reps", type=int, default=3, help="repetitions, alternating (default: 3)")
    common.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    commands = parser.add_subparsers(dest="technique", required=True)
    one = commands.add_parser("sharing", parents=[common], help="one long system prompt before many questions")
    one.add_argument("--requests", type=int, default=32, help="default: 32")
    one = commands.add_parser("start", parents=[common], help="what taking the pool costs")
    one.add_argument(
        "--tokens", type=int, default=93184, help="that the pool holds (default: 93184: 4 GiB of SmolLM2-135M)"
    )
    one = commands.add_parser("kept", parents=[common], help="least recently used against dropping, and the host tier")
    one.add_argument("--trace", metavar="TRACE", type=Path, required=True, help="Mooncake's has shared prefixes")
    one.add_argument("--steps", metavar="FILE", type=Path, required=True, help="coefficients, of benchmarks.fit_step")
    one.add_argument(
        "--shrink", type=int, default=16, help="lengths and shared blocks are divided by this (default: 16)"
    )
    one.add_argument("--kv-tokens", type=int, default=93184, help="device tier (default: 93184)")
    one.add_argument("--host-tokens", type=int, nargs="*", default=[372736, 1490944], help="host tiers to try")
    one = commands.add_parser("host", parents=[common], help="TTFT of a prompt by where its blocks were")
    one.add_argument(
        "--lengths", type=int, nargs="+", default=[128, 512, 1536], help="of the prompt (default: 128 512 1536)"
    )
    one.add_argument("--neighbours", type=int, default=4, help="sequences that decode beside it (default: 4)")
    return parser.parse_args(argv)


def _median(runs: Sequence[Any], field: str) -> float:
    return float(statistics.median(getattr(run, field) for run in runs))


if __name__ == "__main__":
    sys.exit(main())
