"""The engine: requests in, one step at a time, tokens out. `step()` is schedule → run → commit.

Makes the sequences, and measures the steps. Synchronous and single-threaded: `loop` drives it for the server, `LLM` drives it
directly. Knows neither text nor the model behind its `ModelRunner`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine import feasible, policies, snapshot
from pagemill_server.engine.commit import NOT_FINITE, STEP_FAILED, Committer
from pagemill_server.engine.errors import EngineDead, RunnerLost
from pagemill_server.engine.estimate import Estimator, Load
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import AddRequest, EngineStats, FinishReason, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.engine.scheduler import Scheduler
from pagemill_server.engine.sequence import Sequence, draw_seed
from pagemill_server.engine.snapshot import Snapshot
from pagemill_server.engine.step_model import StepModel, StepShape
from pagemill_server.engine.tier_costs import MeasuredCosts, TierCosts

logger = logging.getLogger(__name__)

STEPS_OLD = 16  # how old the estimate of a wait may get
FAILURES_TO_DEATH = 2  # consecutive steps that raised: once may be one bad batch, twice is a broken device

DIED = "The engine has failed and serves no more."

__all__ = ["DIED", "FAILURES_TO_DEATH", "NOT_FINITE", "STEP_FAILED", "Engine"]


class Engine:
    """Raises PagemillError (InvalidConfiguration) for a policy that can't be had.

    Whatever reads the time reads `clock`. `step_model` is what steps are expected to take, before and while they are measured;
    `costs` decides between fetching from the host tier and computing again.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: EngineLimits,
        config: SchedulerConfig,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        prefix_caching: bool = True,
        step_model: StepModel | None = None,
        costs: TierCosts | None = None,
    ) -> None:
        self.limits = limits
        self.config = config
        self.kv_cache = KVCache(
            limits.num_blocks,
            limits.block_size,
            prefix_caching=prefix_caching,
            num_host_blocks=limits.num_host_blocks,
        )
        self.step_model = step_model or StepModel()
        self.estimator = Estimator(self.step_model, limits.block_size)
        # Tokens that one sequence may reach, prompt and output: what the model allows and the whole cache holds.
        self.max_sequence_len = min(limits.max_model_len, self.kv_cache.capacity)
        self.dead: str | None = None
        self._runner = runner
        self._seed = seed
        self._clock = clock
        self._costs = costs or MeasuredCosts(self.step_model)
        self.scheduler = Scheduler(self.kv_cache, config, self._load_policy(config), self._costs)
        self._roster = self.scheduler.roster
        self._committer = Committer(self._roster, self.kv_cache, self.max_sequence_len, self.estimator.finished)
        self._num_requests = 0
        self._consecutive_failures = 0
        self._step_tokens = 0
        self._last_progress = clock()
        self._num_steps = 0
        self._reckoned_for: tuple[int, ...] = ()
        self._queue_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return self.dead is None and self._roster.has_work

    def check(self, request: AddRequest) -> None:
        """Raise RequestRefused for what can never be served. Reads only what never changes, so any thread may ask."""
        feasible.check(request, self.limits)

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises RequestRefused, EngineDead; a request_id that is in use is a programmer's mistake."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.check(request)
        assert request.request_id not in self._roster.requests, f"request_id {request.request_id} is in use"
        seed = request.sampling.seed
        if seed is None:
            seed = draw_seed(self._seed, self._num_requests)
        self._num_requests += 1
        for index in range(request.sampling.n):
            self._roster.add(Sequence(self._roster.totals.num_added, request, seed, index))

    def abort(self, request_id: str, index: int | None = None) -> list[RequestOutput]:
        """End a request, or one sequence of it, and free its blocks now. What is unknown, or has finished, brings nothing."""
        members = self._roster.requests.get(request_id, {})
        leaving = [sequence for sequence in members.values() if index is None or sequence.index == index]
        outputs = [self._committer.finish(sequence, FinishReason.ABORT) for sequence in leaving]
        if outputs:
            self._settle(step_tokens=0)
        return outputs

    def abort_all(self) -> list[RequestOutput]:
        return [output for request_id in tuple(self._roster.requests) for output in self.abort(request_id)]

    def configure(self, config: SchedulerConfig) -> None:
        """Change what is hot, between two steps. Raises PagemillError for a policy that can't be had; then nothing has changed.

        A policy whose settings stay keeps what it has counted.
        """
        stays = _policy_settings(config) == _policy_settings(self.config)
        policy: Policy = self._roster.policy if stays else self._load_policy(config)
        self.scheduler.configure(config, policy)
        self.config = config

    def _load_policy(self, config: SchedulerConfig) -> Policy:
        return policies.load(config, self._clock, self.estimator.cost)

    def step(self) -> list[RequestOutput]:
        """One pass of the model. Raises only what is a bug (SchedulerStuck, KVCacheCorrupted); a failed pass ends requests."""
        plan = self.scheduler.schedule(self._clock())
        result = self._run(plan)
        return self.commit(plan, result)

    def _run(self, plan: SchedulerOutput) -> RunnerOutput | Exception:
        if not plan.sequences and not self._roster.in_flight:
            return RunnerOutput({})
        begin = self._clock()
        try:
            result = self._runner.run(plan)
        except Exception as error:  # whatever a device can raise, it ends requests and not the process
            logger.exception("a step of %d sequences, %d tokens failed", len(plan.sequences), plan.num_tokens)
            self._consecutive_failures += 1
            return error
        self._consecutive_failures = 0
        self._num_steps += 1
        if plan.sequences:
            self.step_model.observe(StepShape.of(plan), self._clock() - begin)
        return result

    def commit(self, plan: SchedulerOutput, result: RunnerOutput | Exception) -> list[RequestOutput]:
        """Take a step's results in: tokens are appended, sequences finish. What left since it was planned is ignored."""
        if isinstance(result, Exception):
            return self._commit_failure(plan, result)
        fetched = self.kv_cache.num_fetched
        outputs = self._committer.take(plan, result)
        fetched = self.kv_cache.num_fetched - fetched
        if fetched and result.fetch_seconds:
            self._costs.observe(fetched, result.fetch_seconds)
        self._settle(step_tokens=plan.num_tokens, progress=bool(plan.num_tokens or result.fetched))
        return outputs

    def _commit_failure(self, plan: SchedulerOutput, error: Exception) -> list[RequestOutput]:
        outputs = self._committer.fail(plan)
        if isinstance(error, RunnerLost):
            outputs += self.fail(str(error))
        elif self._consecutive_failures >= FAILURES_TO_DEATH:
            reason = (
                f"{self._consecutive_failures} steps in a row failed, the last with {type(error).__name__}: {error}"
            )
            outputs += self.fail(reason)
        self._settle(step_tokens=0)
        return outputs

    def fail(self, reason: str) -> list[RequestOutput]:
        """End for good: every request gets an error, and `dead` says why."""
        self.dead = reason
        everybody = [sequence for members in self._roster.requests.values() for sequence in members.values()]
        self._step_tokens = 0
        return [self._committer.finish(sequence, FinishReason.ERROR, error=DIED) for sequence in everybody]

    def stats(self) -> EngineStats:
        totals, cache, roster = self._roster.totals, self.kv_cache, self._roster
        return EngineStats(
            num_running=len(roster.running),
            num_waiting=roster.num_waiting,
            kv_cache_usage=cache.usage,
            num_blocks=cache.num_blocks,
            num_preemptions=totals.num_preemptions,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generation_tokens,
            prefix_cache_queries=totals.prefix_cache_queries,
            prefix_cache_hits=totals.prefix_cache_hits,
            step_tokens=self._step_tokens,
            last_progress=self._last_progress,
            num_added=totals.num_added,
            waiting_tokens=roster.waiting.num_tokens,
            queue_seconds=self._estimate(),
            num_cached_blocks=cache.num_cached,
            num_host_blocks=cache.num_host_blocks,
            host_blocks_used=cache.num_host_used,
            offloaded_blocks=cache.num_offloaded,
            fetched_blocks=cache.num_fetched,
            host_hits=totals.host_hits,
            places=self.config.places,
        )

    def snapshot(self) -> Snapshot:
        """Whose each block is, who runs and who waits. Between two steps."""
        return snapshot.of_engine(self._roster, self.kv_cache, self.stats(), self._clock())

    def _estimate(self) -> float:
        """Seconds that a newcomer would wait, reckoned anew when the queue has changed and now and then."""
        roster = self._roster
        reckoned_for = (
            roster.num_waiting,
            roster.waiting.num_tokens,
            len(roster.running),
            self._num_steps // STEPS_OLD,
        )
        if reckoned_for != self._reckoned_for:
            self._reckoned_for = reckoned_for
            self._queue_seconds = self.estimator.queue_seconds(self._load())
        return self._queue_seconds

    def _load(self) -> Load:
        running = self._roster.running.values()
        outputs = [len(sequence.token_ids) - sequence.num_prompt_tokens for sequence in running]
        return Load(
            num_waiting=self._roster.num_waiting,
            waiting_tokens=self._roster.waiting.num_tokens,
            num_running=len(running),
            running_tokens=sum([sequence.num_computed_tokens for sequence in running]),
            running_output=sum(outputs),
            furthest_output=max(outputs, default=0),
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            free_tokens=self.kv_cache.available * self.kv_cache.block_size,
        )

    def _settle(self, step_tokens: int, *, progress: bool = False) -> None:
        """After every change: what was computed is progress, and the books are checked whenever nothing is left to do."""
        self._step_tokens = step_tokens
        idle = not self._roster.has_work
        if progress or idle:
            self._last_progress = self._clock()
        if idle:
            self.scheduler.check_integrity()


def _policy_settings(config: SchedulerConfig) -> tuple[object, ...]:
    """What of the settings a policy reads."""
    return (
        config.policy,
        config.aging_seconds,
        config.ttft_ms,
        config.weights,
        config.input_weight,
        config.output_weight,
    )
