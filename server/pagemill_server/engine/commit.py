"""Takes in what a step brought: tokens are appended, prompts move on, sequences finish. The last stage of `engine.step`.

What left since the step was planned is ignored; what a step filled may be shared only now, after it has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.request import FinishReason, RequestOutput, SampledToken
from pagemill_server.engine.roster import Roster
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence, SchedulerOutput
from pagemill_server.engine.sequence import Sequence

NOT_FINITE = "The model computed values that are not finite for this request."
STEP_FAILED = "The engine failed while it computed this request; it may succeed when sent again."


class Committer:
    """`max_sequence_len`: tokens that one sequence may reach. `on_end` hears of each that ended of itself."""

    def __init__(
        self, roster: Roster, kv_cache: KVCache, max_sequence_len: int, on_end: Callable[[Sequence], None]
    ) -> None:
        self._roster = roster
        self._kv_cache = kv_cache
        self._max_sequence_len = max_sequence_len
        self._on_end = on_end

    def take(self, plan: SchedulerOutput, result: RunnerOutput) -> list[RequestOutput]:
        """A step succeeded."""
        self._kv_cache.confirm_offloads()
        self._roster.fetched(result.fetched)
        running = self._roster.running
        outputs = []
        for entry in plan.sequences:
            sequence = running.get(entry.seq_id)
            if sequence is not None and (output := self._advance(sequence, entry, result)) is not None:
                outputs.append(output)
        return outputs

    def fail(self, plan: SchedulerOutput) -> list[RequestOutput]:
        """A step raised: what it computed can't be trusted, nor what was being fetched, for it may have been that which failed."""
        self._kv_cache.undo_offloads(plan.offloads)
        running = tuple(self._roster.running.values())
        return [self.finish(sequence, FinishReason.ERROR, error=STEP_FAILED) for sequence in running]

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        tokens: tuple[SampledToken, ...] = (),
        *,
        error: str | None = None,
        prompt_logprobs: tuple[SampledToken, ...] = (),
        embedding: tuple[float, ...] | None = None,
    ) -> RequestOutput:
        """The sequence's last output."""
        self._roster.remove(sequence)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._on_end(sequence)
        return _output(sequence, tokens, reason, error, prompt_logprobs, embedding)

    def _advance(self, sequence: Sequence, entry: ScheduledSequence, result: RunnerOutput) -> RequestOutput | None:
        start, end = entry.start, entry.start + len(entry.token_ids)
        sequence.num_computed_tokens = end
        self._charge(sequence, start, end, int(entry.sampling is not None))
        if entry.seq_id in result.failed:
            self._kv_cache.forget(sequence)
            return self.finish(sequence, FinishReason.ERROR, error=result.errors.get(entry.seq_id, NOT_FINITE))
        self._kv_cache.commit(sequence)
        prompt_logprobs = _news(sequence, entry, result) if entry.prompt_targets else ()
        if entry.sampling is not None:
            return self._append(sequence, result.sampled[entry.seq_id], prompt_logprobs)
        if end == sequence.num_tokens:
            return self._end_without_token(sequence, result.embeddings.get(entry.seq_id), prompt_logprobs)
        return _output(sequence, (), prompt_logprobs=prompt_logprobs) if prompt_logprobs else None

    def _charge(self, sequence: Sequence, start: int, end: int, sampled: int) -> None:
        """Tell the policy what was computed for the first time, and sampled."""
        first_time, charged = 0, sequence.num_charged_tokens
        if charged < sequence.num_prompt_tokens:
            prompt_end = min(end, sequence.num_prompt_tokens)
            first_time = max(0, prompt_end - max(start, charged))
            sequence.num_charged_tokens = max(charged, prompt_end)
        if first_time or sampled:
            self._roster.policy.charge(sequence, first_time, sampled)

    def _append(
        self, sequence: Sequence, token: SampledToken, prompt_logprobs: tuple[SampledToken, ...]
    ) -> RequestOutput:
        if not sequence.num_output_tokens:
            self._roster.totals.prompt_tokens += sequence.num_prompt_tokens
        self._roster.totals.generation_tokens += 1
        sequence.token_ids.append(token.token_id)
        reason = self._finish_reason(sequence, token.token_id)
        if reason is None:
            return _output(sequence, (token,), prompt_logprobs=prompt_logprobs)
        return self.finish(sequence, reason, (token,), prompt_logprobs=prompt_logprobs)

    def _end_without_token(
        self, sequence: Sequence, embedding: tuple[float, ...] | None, prompt_logprobs: tuple[SampledToken, ...]
    ) -> RequestOutput:
        """The prompt was all that was asked for."""
        self._roster.totals.prompt_tokens += sequence.num_prompt_tokens
        reason = FinishReason.STOP if sequence.request.pooling else FinishReason.LENGTH
        return self.finish(sequence, reason, prompt_logprobs=prompt_logprobs, embedding=embedding)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        sampling, num_tokens = sequence.request.sampling, len(sequence.token_ids)
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        # A sequence that outgrows the model or, alone, the whole cache has its answer cut: it would never fit again.
        if num_tokens - sequence.num_prompt_tokens >= sampling.max_tokens or num_tokens >= self._max_sequence_len:
            return FinishReason.LENGTH
        return None


def _news(sequence: Sequence, entry: ScheduledSequence, result: RunnerOutput) -> tuple[SampledToken, ...]:
    """The prompt's log-probabilities that were not handed on before a preemption."""
    known = max(0, sequence.num_prompt_logprobs - entry.start)
    sequence.num_prompt_logprobs = entry.start + len(entry.prompt_targets)
    return result.prompt_logprobs[entry.seq_id][known:]


def _output(
    sequence: Sequence,
    tokens: tuple[SampledToken, ...],
    reason: FinishReason | None = None,
    error: str | None = None,
    prompt_logprobs: tuple[SampledToken, ...] = (),
    embedding: tuple[float, ...] | None = None,
) -> RequestOutput:
    is_first, sequence.has_output = not sequence.has_output, True
    return RequestOutput(
        sequence.request.request_id,
        tokens,
        reason,
        error,
        sequence.num_prompt_tokens,
        sequence.num_cached_tokens,
        sequence.first_scheduled if is_first else None,
        sequence.index,
        prompt_logprobs,
        embedding,
    )
