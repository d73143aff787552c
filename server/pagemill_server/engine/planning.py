"""From a sequence and a number of tokens to what the runner is told: the last stage of `scheduler`, a pure function of both."""

from __future__ import annotations

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.engine.sequence import Sequence


def plan(sequence: Sequence, num_tokens: int, kv_cache: KVCache) -> ScheduledSequence:
    """Its next `num_tokens` tokens, at least one and at most up to its end."""
    token_ids, start = sequence.token_ids, sequence.num_computed_tokens
    end = start + num_tokens
    reaches_end = end == len(token_ids)
    sampling = sequence.request.sampling
    samples = reaches_end and not sequence.request.pooling and sampling.max_tokens > 0
    if samples and _is_plain(sampling):
        position = len(token_ids) - sequence.num_prompt_tokens
        chunk, table = tuple(token_ids[start:end]), kv_cache.table(sequence, end)
        return ScheduledSequence(
            sequence.seq_id, chunk, start, table, sampling, sequence.seed, position, sequence.index
        )
    history = tuple(token_ids) if samples and _looks_back(sampling) else None
    targets = () if sampling.prompt_logprobs is None or sequence.index else _prompt_targets(sequence, start, end)
    return ScheduledSequence(
        seq_id=sequence.seq_id,
        token_ids=tuple(token_ids[start:end]),
        start=start,
        block_table=kv_cache.table(sequence, end),
        sampling=sampling if samples else None,
        seed=sequence.seed,
        output_position=len(token_ids) - sequence.num_prompt_tokens,
        index=sequence.index,
        num_prompt_tokens=sequence.num_prompt_tokens if history or targets else 0,
        history=history,
        output_tokens=tuple(token_ids[sequence.num_prompt_tokens :]) if samples and sampling.grammar else None,
        prompt_targets=targets,
        prompt_top=sampling.prompt_logprobs or 0 if targets else 0,
        pooling=reaches_end and sequence.request.pooling,
    )


def _is_plain(sampling: SamplingParams) -> bool:
    """Whether only the next token is wanted, and nothing looks back: what most steps are made of."""
    return sampling.prompt_logprobs is None and not sampling.grammar and not _looks_back(sampling)


def _looks_back(sampling: SamplingParams) -> bool:
    return bool(sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0)


def _prompt_targets(sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
    """The prompt tokens after the computed ones, unless all of them were reported before a preemption."""
    last = min(end, sequence.num_prompt_tokens - 1)
    return tuple(sequence.token_ids[start + 1 : last + 1]) if last > sequence.num_prompt_logprobs else ()
