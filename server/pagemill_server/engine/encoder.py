"""The engine of encoders: whole texts in, one step at a time, a vector each out. `step()` is schedule → run → commit.

No cache and no decoding: a text is computed in one step and gone. It shows `loop` and `LLM` the same face as `engine.Engine`. Texts
go in the policy's order, as many as fit a step; one that is longer than the step's budget goes alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine import feasible, policies
from pagemill_server.engine.engine import DIED, FAILURES_TO_DEATH, NOT_FINITE, STEP_FAILED
from pagemill_server.engine.errors import EngineDead
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import AddRequest, EngineStats, FinishReason, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence, SchedulerOutput
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.snapshot import LISTED, Snapshot, waiting_views
from pagemill_server.engine.step_model import StepModel, StepShape
from pagemill_server.engine.waiting import WaitingQueue

logger = logging.getLogger(__name__)


class EncoderEngine:
    """Raises PagemillError (InvalidConfiguration) for an unknown policy."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: EngineLimits,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.dead: str | None = None
        self._runner, self._clock = runner, clock
        self._texts: dict[str, Sequence] = {}  # not finished, by request_id, in the order of their coming
        self._in_step: list[Sequence] = []  # of the step that is being made, in its order
        self._num_added = 0
        self._consecutive_failures = 0
        self._prompt_tokens = 0
        self._step_tokens = 0
        self._step_model = StepModel()
        self._last_progress = clock()
        self.configure(config)

    @property
    def has_work(self) -> bool:
        return bool(self._texts)

    def configure(self, config: SchedulerConfig) -> None:
        """Change what is hot, between two steps; what waits is queued anew. Raises PagemillError, and then nothing has changed."""
        policy = policies.load(config, self._clock)
        self.config, self._policy, self._waiting = config, policy, WaitingQueue(policy)
        for text in self._texts.values():
            self._waiting.push(text)

    def check(self, request: AddRequest) -> None:
        """Raise RequestRefused for what can never be served. Reads only what never changes, so any thread may ask."""
        feasible.check(request, self.limits)

    def add(self, request: AddRequest) -> None:
        """Queue a text. Raises RequestRefused, EngineDead; a request_id that is in use is a programmer's mistake."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.check(request)
        assert request.request_id not in self._texts, f"request_id {request.request_id} is in use"
        text = Sequence(self._num_added, request, seed=0)
        self._num_added += 1
        self._texts[request.request_id] = text
        self._waiting.push(text)

    def abort(self, request_id: str, index: int | None = None) -> list[RequestOutput]:
        """Forget a text that waits. An id or index that is unknown, or has finished, brings nothing."""
        text = self._texts.get(request_id)
        if text is None or index not in (None, 0):
            return []
        output = self._finish(text, FinishReason.ABORT)
        self._settle(step_tokens=0)
        return [output]

    def abort_all(self) -> list[RequestOutput]:
        return [output for request_id in tuple(self._texts) for output in self.abort(request_id)]

    def step(self) -> list[RequestOutput]:
        """One pass of the model. A failed pass ends the requests that were in it."""
        plan = self.schedule()
        result = self._run(plan)
        return self.commit(plan, result)

    def schedule(self) -> SchedulerOutput:
        """The texts of the next step, in the policy's order; at least one where any waits."""
        now, tokens = self._clock(), 0
        chosen = self._in_step = []
        while (head := self._waiting.head()) is not None and len(chosen) < self.config.max_num_seqs:
            if chosen and tokens + head.num_tokens > self.config.max_num_batched_tokens:
                break
            self._waiting.remove(head)
            head.first_scheduled = now
            chosen.append(head)
            tokens += head.num_tokens
        return SchedulerOutput(tuple(_entry(text) for text in chosen), tokens)

    def _run(self, plan: SchedulerOutput) -> RunnerOutput | Exception:
        began = self._clock()
        try:
            result = self._runner.run(plan)
        except Exception as error:  # whatever a device can raise, it ends requests and not the process
            logger.exception("a step of %d texts, %d tokens failed", len(plan.sequences), plan.num_tokens)
            self._consecutive_failures += 1
            return error
        self._consecutive_failures = 0
        if plan.sequences:
            self._step_model.observe(StepShape.of(plan), self._clock() - began)
        return result

    def commit(self, plan: SchedulerOutput, result: RunnerOutput | Exception) -> list[RequestOutput]:
        """Each text of the step ends: with its vector, or with an error."""
        if isinstance(result, Exception) and self._consecutive_failures >= FAILURES_TO_DEATH:
            steps, words = self._consecutive_failures, f"{type(result).__name__}: {result}"
            return self.fail(f"{steps} steps in a row failed, the last with {words}")
        outputs = [self._outcome(text, result) for text in self._in_step]
        self._settle(0 if isinstance(result, Exception) else plan.num_tokens)
        return outputs

    def _outcome(self, text: Sequence, result: RunnerOutput | Exception) -> RequestOutput:
        if isinstance(result, Exception):
            return self._finish(text, FinishReason.ERROR, error=STEP_FAILED)
        self._prompt_tokens += text.num_tokens
        self._policy.charge(text, text.num_tokens, 0)
        if text.seq_id in result.failed:
            return self._finish(text, FinishReason.ERROR, error=NOT_FINITE)
        return self._finish(text, FinishReason.STOP, embedding=result.embeddings[text.seq_id])

    def fail(self, reason: str) -> list[RequestOutput]:
        """End for good: every request gets an error, and `dead` says why."""
        self.dead = reason
        outputs = [self._finish(text, FinishReason.ERROR, error=DIED) for text in tuple(self._texts.values())]
        self._step_tokens = 0
        return outputs

    def stats(self) -> EngineStats:
        waiting, tokens = len(self._waiting), self._waiting.num_tokens
        context = tokens * tokens // (2 * waiting) if waiting else 0  # as if all were equally long
        return EngineStats(
            num_running=0,  # between two steps nothing runs
            num_waiting=waiting,
            kv_cache_usage=0.0,
            num_blocks=0,
            num_preemptions=0,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            step_tokens=self._step_tokens,
            last_progress=self._last_progress,
            num_added=self._num_added,
            waiting_tokens=tokens,
            queue_seconds=self._step_model.seconds(StepShape(tokens, waiting, context)) if waiting else 0.0,
            places=self.config.places,
        )

    def snapshot(self) -> Snapshot:
        """The texts that wait; there are no blocks, and between two steps nothing runs."""
        waiting = waiting_views(self._waiting.first(LISTED))
        return Snapshot(self._clock(), self.stats(), blocks=None, waiting=waiting)

    def _finish(
        self,
        text: Sequence,
        reason: FinishReason,
        error: str | None = None,
        embedding: tuple[float, ...] | None = None,
    ) -> RequestOutput:
        self._waiting.remove(text)
        self._policy.left(text)
        del self._texts[text.request.request_id]
        return RequestOutput(
            text.request.request_id,
            (),
            reason,
            error,
            num_prompt_tokens=text.num_prompt_tokens,
            first_scheduled=text.first_scheduled,
            embedding=embedding,
        )

    def _settle(self, step_tokens: int) -> None:
        """After every change: what was computed, and having nothing to do, is progress."""
        self._step_tokens = step_tokens
        if step_tokens or not self.has_work:
            self._last_progress = self._clock()


def _entry(text: Sequence) -> ScheduledSequence:
    return ScheduledSequence(
        seq_id=text.seq_id,
        token_ids=text.request.prompt_token_ids,
        start=0,
        block_table=(),
        sampling=None,
        seed=0,
        output_position=0,
        num_prompt_tokens=text.num_prompt_tokens,
        pooling=True,
    )
