"""The hand-over from `engine/scheduler` to `model/runner`: the only thing that crosses. Frozen, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_server.engine.request import SampledToken, SamplingParams


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The tokens of one sequence to compute in this step. Filled by the scheduler.

    There are no prefill and decode phases: positions `start .. start+len(token_ids)` are computed, whatever they are.
    """

    seq_id: int  # unique in the process
    token_ids: tuple[int, ...]  # tokens to compute, at least one; prompt and output tokens alike
    start: int  # tokens whose KV is in the cache already = position of token_ids[0]
    block_table: tuple[int, ...]  # physical blocks that hold positions 0 .. start+len(token_ids)-1, in order
    sampling: SamplingParams | None  # None: the chunk does not reach the sequence's end, nothing is sampled
    seed: int  # of the counter-based generator, resolved (never None)
    output_position: int  # how many tokens were sampled before: the generator's counter


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. Filled by the scheduler; empty when there is nothing to do."""

    sequences: tuple[ScheduledSequence, ...]
    num_tokens: int  # sum of len(token_ids), at most max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step brought. Filled by the runner: one entry a scheduled sequence whose `sampling` is set.

    A sequence whose logits are not finite is named in `failed` and has no token: it alone ends with an error.
    """

    sampled: dict[int, SampledToken]  # by seq_id
    failed: frozenset[int] = frozenset()
