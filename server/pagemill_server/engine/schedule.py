"""The hand-over from `engine/scheduler` to `model/runner`: the only thing that crosses. Frozen, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pagemill_server.engine.request import SampledToken, SamplingParams


class ScheduledSequence(NamedTuple):
    """The tokens of one sequence to compute in this step. Filled by the scheduler.

    There are no prefill and decode phases: positions `start .. start+len(token_ids)` are computed, whatever they are. A named
    tuple, because each step makes one a sequence, and a frozen dataclass takes four times as long to make.
    """

    seq_id: int  # unique in the process
    token_ids: tuple[int, ...]  # tokens to compute, at least one; prompt and output tokens alike
    start: int  # tokens whose KV is in the cache already = position of token_ids[0]
    block_table: tuple[int, ...]  # physical blocks that hold positions 0 .. start+len(token_ids)-1, in order
    sampling: SamplingParams | None  # None: the chunk does not reach the sequence's end, nothing is sampled
    seed: int  # of the counter-based generator, resolved (never None)
    output_position: int  # how many tokens were sampled before: the generator's counter
    index: int = 0  # type: ignore[assignment]  # of the sequence in its request: the generator's second key
    num_prompt_tokens: int = 0  # of the sequence; 0 where nothing below or in `sampling` needs it
    history: tuple[int, ...] | None = None  # prompt and output tokens, for penalties; None where none are asked for
    # Prompt tokens that follow each computed token and whose log-probability is wanted: one entry a token of token_ids, from the
    # first on (fewer at the prompt's end).
    prompt_targets: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] | None = None  # sampled so far, for a grammar; None where there is none
    prompt_top: int = 0  # how many of the most likely are wanted beside each of them: the request's prompt_logprobs
    pooling: bool = False  # the chunk reaches the prompt's end and its last hidden state is wanted, nothing sampled


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's keys and values of all layers, from one tier to the other."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Blocks that come from the host tier while others run. Filled by `kv_cache`; reported by its ticket when it is done."""

    ticket: int  # unique in the process
    copies: tuple[BlockCopy, ...]  # host block → device block


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. Filled by the scheduler; empty when there is nothing to do.

    Order: `offloads` have left the device before this step writes any block; `fetches` begin after them and run beside this and
    later steps; no sequence of a step names a block that a fetch not yet reported writes to. Without sequences but with fetches
    under way, the runner waits until one is done.
    """

    sequences: tuple[ScheduledSequence, ...]
    num_tokens: int  # sum of len(token_ids), at most max_num_batched_tokens
    offloads: tuple[BlockCopy, ...] = ()  # device block → host block
    fetches: tuple[Fetch, ...] = ()


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step brought. Filled by the runner: one entry a scheduled sequence whose `sampling` (or `pooling`) is set.

    A sequence whose logits are not finite is named in `failed` and has no token: it alone ends with an error. `errors` says why
    where it is something else.
    """

    sampled: dict[int, SampledToken]  # by seq_id
    failed: frozenset[int] = frozenset()
    prompt_logprobs: dict[int, tuple[SampledToken, ...]] = field(default_factory=dict)  # by seq_id, one a prompt_target
    embeddings: dict[int, tuple[float, ...]] = field(default_factory=dict)  # by seq_id
    fetched: frozenset[int] = frozenset()  # tickets of fetches that ended since the last output that was returned
    fetch_seconds: float = 0.0  # that copying their blocks took, all of them together; 0 where nobody measured it
    errors: dict[int, str] = field(default_factory=dict)  # by seq_id of some in `failed`: a sentence for the client
