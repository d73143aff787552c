"""What a request will take before it runs, and how long one that came now would wait, from the fitted step model.

An estimate, not a promise: how long answers get is only known from those that ended. It gives Retry-After, a gauge and what
policies may ask; nothing depends on its being right. Made by `engine`; knows neither the queue nor the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.step_model import StepModel, StepShape

FIRST_GUESS = 64.0  # output tokens of an answer, before any has ended
NEWS = 0.05  # what an answer that ends weighs in the mean
SHORTEST_RETRY, LONGEST_RETRY = 1, 120  # seconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one sequence, from now to its end."""

    blocks: int  # that it takes to be admitted
    most_blocks: int  # that it may come to hold
    prefill_seconds: float  # until its first token, were it alone
    seconds: float  # until its end, were it alone and as long as answers are here


@dataclass(frozen=True, slots=True)
class Load:
    """What waits and runs. Filled by `engine`."""

    num_waiting: int  # sequences
    waiting_tokens: int  # that are to be computed for them
    num_running: int  # sequences
    running_tokens: int  # whose KV they hold
    running_output: int  # tokens that they have got so far
    furthest_output: int  # tokens that the one of them with the most has got so far
    max_num_seqs: int
    max_num_batched_tokens: int
    free_tokens: int  # that the free and the cached blocks have room for


class Estimator:
    """Keeps how long answers get; the model is fed by the engine."""

    def __init__(self, model: StepModel, block_size: int) -> None:
        self.model = model
        self._block_size = block_size
        self._typical_output = FIRST_GUESS

    def finished(self, sequence: Sequence) -> None:
        """It ended of itself, and not by a hang-up or an error."""
        self._typical_output += NEWS * (sequence.num_output_tokens - self._typical_output)

    def cost(self, sequence: Sequence) -> Cost:
        left = sequence.request.sampling.max_tokens - sequence.num_output_tokens
        prompt = sequence.num_tokens - sequence.num_computed_tokens
        prefill = self.model.seconds(StepShape.of_chunks([(sequence.num_computed_tokens, prompt)]))
        decode = self.model.seconds(StepShape(1, 1, sequence.num_tokens))
        return Cost(
            blocks=-(-(sequence.num_tokens + 1) // self._block_size),
            most_blocks=-(-(sequence.num_tokens + left) // self._block_size),
            prefill_seconds=prefill,
            seconds=prefill + decode * max(0.0, min(left, self._typical_output) - 1),
        )

    def queue_seconds(self, load: Load) -> float:
        """Until a request that came now would first run.

        It runs once everybody before it has been computed, and once so many have ended that there is a place and room for it;
        both go on in the same steps, so the longer of the two says how many steps that takes.
        """
        if not (load.num_waiting or load.num_running):
            return 0.0
        tokens_a_step = max(1, load.max_num_batched_tokens - load.num_running)
        steps = max(1.0, load.waiting_tokens / tokens_a_step, self._steps_until_room(load))
        running = StepShape(load.num_running, load.num_running, load.running_tokens)
        return steps * self.model.seconds(running) + self.model.prefill_seconds(load.waiting_tokens)

    def _steps_until_room(self, load: Load) -> float:
        if not load.num_running:
            return 0.0
        mean_tokens = load.waiting_tokens / load.num_waiting if load.num_waiting else 1.0
        room = min(load.max_num_seqs - load.num_running, int(load.free_tokens / max(1.0, mean_tokens)))
        must_end = max(0, load.num_waiting + 1 - max(0, room))
        typical = max(self._typical_output, load.running_output / load.num_running)
        # They end one after another all the time; but those that began together run on together.
        first_end = typical - load.furthest_output if must_end else 0.0
        return max(first_end, must_end * typical / load.num_running)


def retry_after(queue_seconds: float) -> int:
    """Whole seconds for the header, bounded: an estimate gone wrong must neither invite a storm nor send clients away."""
    if not math.isfinite(queue_seconds):
        return LONGEST_RETRY
    return max(SHORTEST_RETRY, min(LONGEST_RETRY, math.ceil(queue_seconds)))
