"""The contiguous way to keep keys and values, on our own engine: every sequence reserves `max_model_len` when it is admitted.

To the engine a block is as long as the longest sequence; the runner underneath lays such a block out as a run of its own small
blocks. So scheduler, kernels and memory are the same, and a comparison shows what paging alone does. Used by `paged_vs_contiguous`.
"""

from __future__ import annotations

from dataclasses import replace

from pagemill_server.config import EngineLimits
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence, SchedulerOutput


class ReservingRunner:
    """Implements `engine.ports.ModelRunner` on one that works in blocks of `small` tokens; `per_large` of them are one of ours."""

    def __init__(self, runner: ModelRunner, small: int, per_large: int) -> None:
        self._runner, self._small, self._per_large = runner, small, per_large

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        return self._runner.run(replace(output, sequences=tuple(map(self._spread, output.sequences))))

    def _spread(self, sequence: ScheduledSequence) -> ScheduledSequence:
        count = -(-(sequence.start + len(sequence.token_ids)) // self._small)
        blocks = (block * self._per_large + part for block in sequence.block_table for part in range(self._per_large))
        return sequence._replace(block_table=tuple(block for block, _ in zip(blocks, range(count), strict=False)))


def reserving_limits(paged: EngineLimits, longest: int) -> tuple[EngineLimits, int]:
    """The same memory in blocks of `longest` tokens, rounded up to whole small ones, and how many small ones each is."""
    per_large = -(-longest // paged.block_size)
    blocks = paged.num_blocks // per_large
    return EngineLimits(longest, paged.vocab_size, blocks, per_large * paged.block_size), per_large
