"""The runner of a GPU: decode steps replay CUDA graphs, and everything is compiled before the first request comes.

Made by `load` in the place of `runner.Runner`, of which it changes how the hidden states are computed and nothing else.
"""

from __future__ import annotations

import logging
import time

import torch

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.batch import InputBatch
from pagemill_server.model.graphs import DecodeGraphs
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.profile import Widest, widest_step
from pagemill_server.model.runner import Runner
from pagemill_server.model.triton_attention import TritonAttention

log = logging.getLogger(__name__)

# Triton compiles a kernel anew where a number that it is given is 1, or a multiple of 16, or neither.
_KINDS = (1, 3, 16)
# Tokens before a single one: how often its keys are split for the device, and so which kernel merges them, follows from it.
_CONTEXTS = (256, 384, 512, 640, 1024, 1152, 2048, 2176, 4096, 4224, 8192)
_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.01)


class GraphRunner(Runner):
    """A Runner whose steps of single tokens may be replayed."""

    _graphs: DecodeGraphs | None = None

    def warm_up(self, pool: KVPool, bounds: Widest, *, captures: bool) -> None:
        """Compile and capture, on the pool's first block, which is zeros again afterwards. The widest step comes last: what it
        takes is there beside the cache and the graphs, or the start fails with CUDA's refusal.

        Raises torch.OutOfMemoryError.
        """
        began = time.monotonic()
        for step in warm_steps(bounds):
            self.run(step)
        if captures and isinstance(self._attention, TritonAttention):
            blocks = -(-bounds.max_model_len // bounds.block_size)
            sequences = min(bounds.max_num_seqs, bounds.max_num_batched_tokens)
            graphs = DecodeGraphs(self._model, self._attention, sequences, blocks, self._device)
            with torch.inference_mode():
                graphs.capture()
            self._graphs = graphs
        self.run(widest_step(bounds))
        pool.data.zero_()
        torch.cuda.synchronize(self._device)
        log.info("kernels compiled and warm in %.1f s", time.monotonic() - began)

    def _hidden(self, batch: InputBatch) -> torch.Tensor:
        if self._graphs is not None and (hidden := self._graphs.run(batch)) is not None:
            return hidden
        return super()._hidden(batch)


def warm_steps(bounds: Widest) -> list[SchedulerOutput]:
    """Steps of one sequence, of some, and of a multiple of 16; of single tokens, of longer pieces and of both, over one block and
    over several, greedy and drawn: each kernel's variants. All in block 0."""
    steps = []
    for sequences in _KINDS:
        for tokens in _KINDS:
            for blocks in _KINDS:
                steps.append(_step([tokens] * sequences, blocks, bounds))
        steps.append(_step([3, *[1] * sequences], 3, bounds))
    steps += [_step([1], -(-context // bounds.block_size), bounds) for context in _CONTEXTS]
    return [step for step in steps if step is not None]


def _step(counts: list[int], blocks: int, bounds: Widest) -> SchedulerOutput | None:
    """None where the bounds forbid it."""
    end = max(blocks * bounds.block_size, max(counts))
    if sum(counts) > bounds.max_num_batched_tokens or len(counts) > bounds.max_num_seqs or end > bounds.max_model_len:
        return None
    return SchedulerOutput(
        tuple(_sequence(place, count, end, bounds.block_size) for place, count in enumerate(counts)), sum(counts)
    )


def _sequence(place: int, tokens: int, end: int, block_size: int) -> ScheduledSequence:
    return ScheduledSequence(
        seq_id=place,
        token_ids=(0,) * tokens,
        start=end - tokens,
        block_table=(0,) * -(-end // block_size),
        sampling=_DRAWN if place % 2 else _GREEDY,
        seed=0,
        output_position=0,
        num_prompt_tokens=end,
    )
