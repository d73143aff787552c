"""Single steps of a wanted shape, made without a scheduler, and how long the runner takes for one.

Which keys and values lie in the cache changes no step's time, so sequences of any length stand there without having been
computed. Used by `fit_step` and `block_size`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.real_model import GREEDY
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput


@dataclass(frozen=True, slots=True)
class Shape:
    """`decodes` sequences that compute one token behind `context` others, and a chunk of `chunk` tokens behind `start` others."""

    decodes: int = 0
    context: int = 0
    chunk: int = 0
    start: int = 0

    @property
    def tokens(self) -> int:
        """That the cache must hold."""
        return self.decodes * (self.context + 1) + (self.chunk + self.start if self.chunk else 0)


def step(shape: Shape, block_size: int) -> SchedulerOutput:
    """A step of that shape; no two sequences share a block. Block numbers count from 0."""
    blocks = itertools.count()
    sequences = [_sequence(number, shape.context, 1, blocks, block_size) for number in range(shape.decodes)]
    if shape.chunk:
        sequences.append(_sequence(shape.decodes, shape.start, shape.chunk, blocks, block_size))
    return SchedulerOutput(tuple(sequences), sum(len(sequence.token_ids) for sequence in sequences))


def blocks_needed(shape: Shape, block_size: int) -> int:
    return shape.decodes * -(-(shape.context + 1) // block_size) + -(-(shape.start + shape.chunk) // block_size)


def seconds(runner: ModelRunner, output: SchedulerOutput, reps: int) -> list[float]:
    """Wall time of each of `reps` runs; one more before them pays for what only a first run pays."""
    taken = []
    for _ in range(reps + 1):
        began = time.perf_counter()
        runner.run(output)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def median_seconds(runner: ModelRunner, output: SchedulerOutput, reps: int) -> float:
    return statistics.median(seconds(runner, output, reps))


def _sequence(number: int, start: int, count: int, blocks: Iterator[int], block_size: int) -> ScheduledSequence:
    table = tuple(itertools.islice(blocks, -(-(start + count) // block_size)))
    token_ids = tuple((number * 31 + position) % 200 + 1 for position in range(count))
    return ScheduledSequence(number, token_ids, start, table, GREEDY, seed=number, output_position=0)
