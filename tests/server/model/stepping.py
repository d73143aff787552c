"""What tests of the model use to step sequences as the scheduler would, with shuffled block tables."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.load import load_runner
from pagemill_server.model.runner import Runner

GREEDY = SamplingParams(temperature=0.0)


def load(
    path: Path, *, block_size: int = 16, memory_bytes: int = 256 << 20, dtype: str = "float32", **options: Any
) -> tuple[Runner, Stepper]:
    """A runner over the model at `path`, and what steps it."""
    runner, limits, _ = load_runner(
        inspect(path),
        ModelOptions(str(path), ("test",), dtype=dtype, **options),
        CacheConfig(block_size=block_size, memory_bytes=memory_bytes),
        SchedulerConfig(),
        lambda done, total: None,
    )
    return runner, Stepper(runner, limits.num_blocks, block_size)


class Stepper:
    """Keeps each sequence's length and blocks; blocks are handed out in a shuffled order."""

    def __init__(self, runner: Runner, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.runner, self._block_size = runner, block_size
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self._lengths: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}

    def schedule(
        self, seq_id: int, token_ids: Sequence[int], sampling: SamplingParams | None = None, output_position: int = 0
    ) -> ScheduledSequence:
        """The next tokens of a sequence; a new id begins one."""
        start = self._lengths.get(seq_id, 0)
        end = self._lengths[seq_id] = start + len(token_ids)
        blocks = self._blocks.setdefault(seq_id, [])
        while len(blocks) * self._block_size < end:
            blocks.append(self._free.pop())
        return ScheduledSequence(seq_id, tuple(token_ids), start, tuple(blocks), sampling, seq_id, output_position)

    def release(self, seq_id: int) -> None:
        """End a sequence; its blocks are the next that are handed out."""
        self._free += self._blocks.pop(seq_id)
        del self._lengths[seq_id]

    def logits(self, chunks: Iterable[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """One step of (sequence, its next tokens): the logits of each sequence's tokens, float32 [tokens, vocab_size]."""
        scheduled = tuple(self.schedule(seq_id, tokens) for seq_id, tokens in chunks)
        rows = self.runner.logits(step_of(scheduled))
        return list(rows.split([len(sequence.token_ids) for sequence in scheduled]))

    def greedy(self, prompts: dict[int, Sequence[int]], count: int) -> dict[int, list[int]]:
        """Greedy continuations of all prompts, stepped together."""
        tokens: dict[int, list[int]] = {seq_id: [] for seq_id in prompts}
        pending = dict(prompts)
        for position in range(count):
            step = tuple(self.schedule(seq_id, ids, GREEDY, position) for seq_id, ids in pending.items())
            sampled = self.runner.run(step_of(step)).sampled
            pending = {seq_id: [sampled[seq_id].token_id] for seq_id in prompts}
            for seq_id, (token,) in pending.items():
                tokens[seq_id].append(token)
        return tokens


def step_of(scheduled: Sequence[ScheduledSequence]) -> SchedulerOutput:
    """A scheduler's output of these."""
    return SchedulerOutput(tuple(scheduled), sum(len(sequence.token_ids) for sequence in scheduled))
