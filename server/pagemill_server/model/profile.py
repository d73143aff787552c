"""The widest step that a scheduler can ask for, run once before anything is served: what it takes, and its first-time costs.

It runs over a scratch pool of one block that every sequence names again and again, so that nothing of it is left in the cache.
On CPU, where a step of a large model takes long, it ends after two layers: the others would use the same memory again. Called by
`load` between the weights and the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.device import Placement
from pagemill_server.model.families import Model
from pagemill_server.model.interface import AttentionBackend, StepAttention
from pagemill_server.model.memory_meter import MemoryMeter
from pagemill_server.model.native_decoder import NativeLlama
from pagemill_server.model.runner import Runner

CPU_LAYERS = 2
CONTEXT = 512  # tokens that most sequences have: with 64 of them more than are ever read at once
# Each setting that costs a sampled row memory of its own.
_SAMPLING = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    min_p=0.01,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias=((0, 1.0),),
    logprobs=5,
)


@dataclass(frozen=True, slots=True)
class Widest:
    """What bounds a step; tokens."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int


def profile(
    model: Model,
    hidden_size: int,
    attention: AttentionBackend,
    bounds: Widest,
    placement: Placement,
    meter: MemoryMeter,
    announce: Callable[[SchedulerOutput], None] = lambda step: None,
) -> int | None:
    """The most bytes that a step takes beside weights and cache, or None where that can't be measured.

    Each step is announced before it runs, for other processes that compute it too.
    """
    runner = Runner(shortened(model, hidden_size, placement), attention, bounds.block_size, placement.device)
    narrow, widest = widest_step(Widest(2, 1, 2, bounds.block_size)), widest_step(bounds)
    announce(narrow)
    runner.run(narrow)  # brings in what is loaded at its first use
    announce(widest)
    return meter.peak(partial(runner.run, widest))


def shortened(model: Model, hidden_size: int, placement: Placement) -> Model:
    """The model as it runs here."""
    if placement.device.type != "cpu":
        return model
    if isinstance(model, NativeLlama):
        return model.shortened(CPU_LAYERS)
    return _FirstLayers(model, CPU_LAYERS, hidden_size, placement)


def widest_step(bounds: Widest) -> SchedulerOutput:
    """As many tokens and sampled rows as a step may have, all in block 0.

    One long chunk, many single tokens after a short context, and at the end of the longest sequence a single token and two
    together: what a backend takes for each is there, without a long chunk over a long context, which takes long.
    """
    longest = bounds.max_model_len
    count = min(bounds.max_num_seqs, bounds.max_num_batched_tokens)
    sizes = [1] * count
    left = bounds.max_num_batched_tokens - count
    for index, most in ((-1, 2), *((index, longest) for index in range(count))):
        more = min(left, min(most, longest) - sizes[index])
        sizes[index] += more
        left -= more
    ends = [longest if index >= count - 2 else min(longest, max(size, CONTEXT)) for index, size in enumerate(sizes)]
    sequences = [_sequence(index, size, ends[index], bounds.block_size) for index, size in enumerate(sizes)]
    return SchedulerOutput(tuple(sequences), sum(sizes))


def _sequence(index: int, tokens: int, end: int, block_size: int) -> ScheduledSequence:
    return ScheduledSequence(
        seq_id=index,
        token_ids=(0,) * tokens,
        start=end - tokens,
        block_table=(0,) * -(-end // block_size),
        sampling=_SAMPLING,
        seed=0,
        output_position=0,
        num_prompt_tokens=end,
        history=(0,) * end,
    )


class _Enough(Exception):
    """The layers that were wanted are through."""


class _FirstLayers:
    """A Model of which only the first layers run; what its head then sees is made up."""

    def __init__(self, model: Model, layers: int, hidden_size: int, placement: Placement) -> None:
        self._model, self._layers, self._hidden_size, self._placement = model, layers, hidden_size, placement
        self.logits, self.attention = model.logits, model.attention

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        def first(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
            if layer >= self._layers:
                raise _Enough
            return attend(query, key, value, layer)

        try:
            return self._model.forward(token_ids, positions, first)
        except _Enough:
            generator = torch.Generator().manual_seed(0)
            made_up = torch.randn((len(token_ids), self._hidden_size), generator=generator)
            return made_up.to(self._placement.device, self._placement.dtype)
