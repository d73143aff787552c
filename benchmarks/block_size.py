"""What a block size costs in memory and in speed: slots that stay empty, and steps of the real model.

    python -m benchmarks.block_size --trace TRACE

Waste is arithmetic over the trace's lengths: of all slots that a sequence holds while it generates, the share that no token fills.
Steps are measured on one model a block size, in rounds over all sizes, the median of all; batches and contexts as in the headings.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine, real_model, record, step_shapes, traces
from benchmarks.step_shapes import Shape
from benchmarks.traces import Recorded
from benchmarks.workload_file import WorkloadError
from pagemill.failures import PagemillError

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHAPES = (
    *(Shape(decodes=count, context=context) for context in (128, 1024) for count in (1, 8, 32)),
    Shape(chunk=512, start=0),
    Shape(chunk=512, start=1024),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One block size."""

    block_size: int
    wasted: float | None  # share of held slots
    seconds: tuple[float, ...]  # of a step of each of SHAPES


def waste(recorded: Sequence[Recorded], block_size: int) -> float:
    """While a sequence generates, it holds whole blocks for its tokens; averaged over all steps of all requests."""
    held = filled = 0
    for row in recorded:
        for length in range(row.prompt_tokens + 1, row.prompt_tokens + row.output_tokens + 1):
            held += -(-length // block_size) * block_size
            filled += length
    return 1 - filled / held


def measure(name: str, sizes: Sequence[int], reps: int, rounds: int) -> dict[int, tuple[float, ...]]:
    """Median seconds of each shape, by block size."""
    taken: defaultdict[int, list[list[float]]] = defaultdict(lambda: [[] for _ in SHAPES])
    for round_ in range(rounds):
        for size in sizes if round_ % 2 == 0 else reversed(sizes):
            tokens = size * max(step_shapes.blocks_needed(shape, size) for shape in SHAPES)
            model = real_model.load(name, kv_tokens=tokens, block_size=size)
            for index, shape in enumerate(SHAPES):
                taken[size][index] += step_shapes.seconds(model.runner, step_shapes.step(shape, size), reps)
    return {size: tuple(map(statistics.median, times)) for size, times in taken.items()}


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        recorded = traces.read(args.trace)[:: args.every] if args.trace else []
        steps = measure(args.model, args.sizes, args.reps, args.rounds)
    except (WorkloadError, PagemillError) as error:
        sys.stderr.write(f"benchmarks.block_size: {error}\n")
        return 1
    found = [Measured(size, waste(recorded, size) if recorded else None, steps[size]) for size in args.sizes]
    print(record.table(["block size", "wasted", *map(_heading, SHAPES)], [_row(one) for one in found]))
    if args.out:
        shapes = [asdict(shape) for shape in SHAPES]
        body = {"shapes": shapes, "reps": args.reps, "rounds": args.rounds, "results": [asdict(one) for one in found]}
        record.write(args.out, here, body)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.block_size", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--trace", metavar="TRACE", type=Path, help="whose lengths the waste is of; left out: no waste")
    parser.add_argument("--every", type=int, default=10, help="every so manyth request of it (default: 10)")
    parser.add_argument("--model", default=real_model.DEMO_MODEL, help=f"default: {real_model.DEMO_MODEL}")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help=f"default: {SIZES}")
    parser.add_argument("--reps", type=int, default=5, help="of a step, each round (default: 5)")
    parser.add_argument("--rounds", type=int, default=2, help="over all sizes (default: 2)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    return parser.parse_args(argv)


def _heading(shape: Shape) -> str:
    if shape.chunk:
        return f"prompt chunk {shape.chunk} behind {shape.start}, ms"
    return f"decode {shape.decodes} at {shape.context}, ms"


def _row(one: Measured) -> list[str]:
    wasted = "-" if one.wasted is None else f"{one.wasted:.2%}"
    return [str(one.block_size), wasted, *(f"{seconds * 1e3:.0f}" for seconds in one.seconds)]


if __name__ == "__main__":
    sys.exit(main())
