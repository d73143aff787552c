"""Measures steps of a grid of shapes on the real model, fits the engine's step model to them, and writes the coefficients.

    python -m benchmarks.fit_step --out benchmarks/results/step-smollm2.json

The grid holds decodes alone, chunks of a prompt alone, and both in one step. What `benchmarks.replay` says in seconds rests on this
fit, so the table shows for each shape what was measured, what the line says, and the ratio of the two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine, real_model, record, step_cost, step_shapes
from benchmarks.step_cost import StepCost
from benchmarks.step_shapes import Shape
from pagemill.failures import PagemillError
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.step_model import Coefficients, StepModel, StepShape

BLOCK = 32  # tokens
ROUNDS = 5  # the fit forgets: several rounds over the grid make all shapes count alike


@dataclass(frozen=True, slots=True)
class Measured:
    """One shape."""

    shape: Shape
    seconds: float  # median


def grid(longest: int, most_tokens: int) -> list[Shape]:
    """Decodes, chunks and mixtures, none beyond a sequence of `longest` tokens nor a cache of `most_tokens`."""
    contexts = (32, 256, 1024, 3000)
    shapes = [Shape(decodes=count, context=context) for count in (1, 4, 16, 64) for context in contexts]
    shapes += [Shape(chunk=chunk, start=start) for chunk in (64, 256, 512) for start in (0, 512, 2048)]
    shapes += [
        Shape(count, context, chunk, start)
        for count, context in ((4, 256), (16, 256), (48, 256))
        for chunk, start in ((64, 0), (256, 512), (448, 0))
    ]
    return [
        shape
        for shape in shapes
        if shape.tokens <= most_tokens and max(shape.context + 1, shape.start + shape.chunk) <= longest
    ]


def measure(runner: ModelRunner, shapes: Sequence[Shape], block_size: int, reps: int) -> list[Measured]:
    """Rounds over all shapes rather than each shape's repetitions in a row: what the machine does besides hits all alike."""
    steps = [step_shapes.step(shape, block_size) for shape in shapes]
    taken: list[list[float]] = [[] for _ in shapes]
    for _ in range(reps):
        for index, output in enumerate(steps):
            runner.run(output)
            began = time.perf_counter()
            runner.run(output)
            taken[index].append(time.perf_counter() - began)
    return [Measured(shape, statistics.median(times)) for shape, times in zip(shapes, taken, strict=True)]


def fit(measured: Sequence[Measured]) -> Coefficients:
    model = StepModel()
    for _ in range(ROUNDS):
        for one in measured:
            model.observe(step_shape(one.shape), one.seconds)
    return model.coefficients


def step_shape(shape: Shape) -> StepShape:
    chunks = [(shape.context, 1)] * shape.decodes + ([(shape.start, shape.chunk)] if shape.chunk else [])
    return StepShape.of_chunks(chunks)


def report(measured: Sequence[Measured], cost: StepCost) -> str:
    """A row a shape, in milliseconds."""
    rows = []
    for one in measured:
        said = cost.shape_seconds(step_shape(one.shape))
        decodes = f"{one.shape.decodes} behind {one.shape.context}" if one.shape.decodes else "-"
        chunk = f"{one.shape.chunk} behind {one.shape.start}" if one.shape.chunk else "-"
        rows.append([decodes, chunk, f"{one.seconds * 1e3:.0f}", f"{said * 1e3:.0f}", f"{said / one.seconds:.2f}"])
    return record.table(["decodes", "chunk", "measured ms", "fitted ms", "fitted / measured"], rows)


def copy_seconds(block_bytes: int, reps: int = 20) -> float:
    """What moving one block takes, in a copy of 64 of them: the median."""
    import torch

    source = torch.zeros(64 * block_bytes, dtype=torch.uint8)
    target = torch.ones_like(source)
    taken = []
    for _ in range(reps):
        began = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) / 64


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        model = real_model.load(args.model, kv_tokens=args.kv_tokens)
    except PagemillError as error:
        sys.stderr.write(f"benchmarks.fit_step: {error}\n")
        return 1
    limits = model.limits
    shapes = grid(limits.max_model_len, limits.num_blocks * BLOCK)
    measured = measure(model.runner, shapes, BLOCK, args.reps)
    copy = copy_seconds(model.block_bytes)
    origin = f"{args.model}, {here.cpu}, {here.cores} cores, {here.date}"
    cost = StepCost(fit(measured), copy, origin=origin)
    print(report(measured, cost))
    print(f"{cost.step}, a block's copy {copy * 1e6:.0f} us")
    if args.out:
        steps = [{**asdict(one.shape), "seconds": one.seconds} for one in measured]
        record.write(args.out, here, {**step_cost.as_json(cost), "reps": args.reps, "steps": steps})
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_step", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--model", default=real_model.DEMO_MODEL, help=f"on this machine (default: {real_model.DEMO_MODEL})"
    )
    parser.add_argument("--kv-tokens", type=int, default=24576, help="KV cache, which bounds the grid (default: 24576)")
    parser.add_argument("--reps", type=int, default=3, help="repetitions, of which the median counts (default: 3)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write coefficients and steps as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
