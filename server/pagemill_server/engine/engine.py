"""The engine: requests in, one step at a time, tokens out. `step()` is schedule → run → commit.

Owns the sequences and what is counted about them. Synchronous and single-threaded: `loop` drives it for the server, `LLM`
drives it directly. Knows neither text nor the model behind its `ModelRunner`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine import policies
from pagemill_server.engine.errors import EngineDead, RequestTooLarge, UnknownTokenId
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import AddRequest, EngineStats, FinishReason, RequestOutput, SampledToken
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.engine.scheduler import Scheduler
from pagemill_server.engine.sequence import Sequence, draw_seed

logger = logging.getLogger(__name__)

FAILURES_TO_DEATH = 2  # consecutive steps that raised: once may be one bad batch, twice is a broken device

NOT_FINITE = "The model computed values that are not finite for this request."
STEP_FAILED = "The engine failed while it computed this request; it may succeed when sent again."
DIED = "The engine has failed and serves no more."


class Engine:
    """Raises PagemillError (InvalidConfiguration) for an unknown policy."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: EngineLimits,
        config: SchedulerConfig,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.kv_cache = KVCache(limits.num_blocks, limits.block_size)
        self.scheduler = Scheduler(self.kv_cache, config, policies.load(config))
        # Tokens that one sequence may reach, prompt and output: what the model allows and the whole cache holds.
        self.max_sequence_len = min(limits.max_model_len, self.kv_cache.capacity)
        self.dead: str | None = None
        self._runner = runner
        self._seed = seed
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}  # not finished, by request_id
        self._num_requests = 0
        self._consecutive_failures = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._step_tokens = 0
        self._last_progress = clock()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check(self, request: AddRequest) -> None:
        """Raise RequestRefused for what can never be served. Reads only what never changes, so any thread may ask."""
        prompt = request.prompt_token_ids
        assert prompt, "a prompt has at least one token"
        if len(prompt) + 1 > self.max_sequence_len:
            by_model = self.limits.max_model_len <= self.kv_cache.capacity
            limited_by = "the context length (max_model_len)" if by_model else "the whole KV cache"
            raise RequestTooLarge(len(prompt), self.max_sequence_len, limited_by)
        for token_id in (min(prompt), max(prompt)):
            if not 0 <= token_id < self.limits.vocab_size:
                raise UnknownTokenId(token_id, self.limits.vocab_size)

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises RequestRefused, EngineDead; a request_id that is in use is a programmer's mistake."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.check(request)
        assert request.request_id not in self._sequences, f"request_id {request.request_id} is in use"
        seed = request.sampling.seed
        if seed is None:
            seed = draw_seed(self._seed, self._num_requests)
        sequence = Sequence(self._num_requests, request, seed)
        self._num_requests += 1
        self._sequences[request.request_id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End a request and free its blocks now. An id that is unknown, or has finished, brings nothing."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        output = self._finish(sequence, FinishReason.ABORT)
        self._settle(step_tokens=0)
        return [output]

    def abort_all(self) -> list[RequestOutput]:
        return [output for request_id in tuple(self._sequences) for output in self.abort(request_id)]

    def step(self) -> list[RequestOutput]:
        """One pass of the model. Raises only what is a bug (SchedulerStuck, KVCacheCorrupted); a failed pass ends requests."""
        plan = self.scheduler.schedule(self._clock())
        result = self._run(plan)
        return self.commit(plan, result)

    def _run(self, plan: SchedulerOutput) -> RunnerOutput | Exception:
        if not plan.sequences:
            return RunnerOutput({})
        try:
            result = self._runner.run(plan)
        except Exception as error:  # whatever a device can raise, it ends requests and not the process
            logger.exception("a step of %d sequences, %d tokens failed", len(plan.sequences), plan.num_tokens)
            self._consecutive_failures += 1
            return error
        self._consecutive_failures = 0
        return result

    def commit(self, plan: SchedulerOutput, result: RunnerOutput | Exception) -> list[RequestOutput]:
        """Take a step's results in: tokens are appended, sequences finish. What left since it was planned is ignored."""
        if isinstance(result, Exception):
            return self._commit_failure(plan, result)
        outputs = []
        for entry in plan.sequences:
            sequence = self.scheduler.running.get(entry.seq_id)
            if sequence is None:
                continue
            sequence.num_computed_tokens += len(entry.token_ids)
            if entry.seq_id in result.failed:
                outputs.append(self._finish(sequence, FinishReason.ERROR, error=NOT_FINITE))
            elif entry.sampling is not None:
                outputs.append(self._append(sequence, result.sampled[entry.seq_id]))
        self._settle(step_tokens=plan.num_tokens)
        return outputs

    def _commit_failure(self, plan: SchedulerOutput, error: Exception) -> list[RequestOutput]:
        """The step's sequences end; the others go on, unless this is the failure after which nothing can be hoped for."""
        if self._consecutive_failures >= FAILURES_TO_DEATH:
            return self.fail(
                f"{self._consecutive_failures} steps in a row failed, the last with {type(error).__name__}: {error}"
            )
        running = self.scheduler.running
        failed = [running[entry.seq_id] for entry in plan.sequences if entry.seq_id in running]
        outputs = [self._finish(sequence, FinishReason.ERROR, error=STEP_FAILED) for sequence in failed]
        self._settle(step_tokens=0)
        return outputs

    def fail(self, reason: str) -> list[RequestOutput]:
        """End for good: every request gets an error, and `dead` says why."""
        self.dead = reason
        outputs = [self._finish(s, FinishReason.ERROR, error=DIED) for s in tuple(self._sequences.values())]
        self._step_tokens = 0
        return outputs

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_cache_usage=self.kv_cache.usage,
            num_blocks=self.kv_cache.num_blocks,
            num_preemptions=self.scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            step_tokens=self._step_tokens,
            last_progress=self._last_progress,
        )

    def _append(self, sequence: Sequence, token: SampledToken) -> RequestOutput:
        if sequence.num_output_tokens == 0:
            self._prompt_tokens += sequence.num_prompt_tokens
        self._generation_tokens += 1
        sequence.token_ids.append(token.token_id)
        return self._output(sequence, (token,), self._finish_reason(sequence, token.token_id))

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if token_id in sequence.request.sampling.stop_token_ids:
            return FinishReason.STOP
        # A sequence that outgrows the model or, alone, the whole cache has its answer cut: it would never fit again.
        if (
            sequence.num_output_tokens >= sequence.request.sampling.max_tokens
            or sequence.num_tokens >= self.max_sequence_len
        ):
            return FinishReason.LENGTH
        return None

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> RequestOutput:
        return self._output(sequence, (), reason, error)

    def _output(
        self,
        sequence: Sequence,
        tokens: tuple[SampledToken, ...],
        reason: FinishReason | None,
        error: str | None = None,
    ) -> RequestOutput:
        if reason is not None:
            self.scheduler.remove(sequence)
            del self._sequences[sequence.request.request_id]
        return RequestOutput(
            sequence.request.request_id,
            tokens,
            reason,
            error,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            first_scheduled=sequence.first_scheduled if sequence.num_output_tokens == len(tokens) else None,
        )

    def _settle(self, step_tokens: int) -> None:
        """After every change: what was computed is progress, and the books are checked whenever nothing is left to do."""
        self._step_tokens = step_tokens
        idle = not self.has_work
        if step_tokens or idle:
            self._last_progress = self._clock()
        if idle:
            self.scheduler.check_integrity()
