"""Drives the real engine through a list of requests in virtual time, and keeps what happened to each.

`in_time` lets requests arrive when the trace says, `saturated` keeps the queue from ever being empty (what the machine can do at
most). The books of the block pool are checked on the way and at the end. Used by `replay` and `paged_vs_contiguous`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.offered import VOCAB_SIZE, Offered
from benchmarks.step_cost import StepCost
from benchmarks.virtual_time import ModelledRunner, VirtualClock
from pagemill_server.config import CacheConfig, EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, RequestOutput, SamplingParams
from pagemill_server.engine.step_model import StepModel

CHECK_EVERY = 1000  # steps between two checks of the books


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a replay is made with."""

    cost: StepCost
    scheduler: SchedulerConfig
    cache: CacheConfig
    limits: EngineLimits
    tpot_target: float  # seconds
    window: float = 600.0  # seconds, of `Replay.service`: long beside one request, short beside a rush


@dataclass(slots=True)
class Outcome:
    """What one request got. Virtual seconds since the replay began."""

    offered: Offered
    arrival: float
    first: float = 0.0  # first token
    last: float = 0.0
    tokens: int = 0
    cached: int = 0  # prompt tokens that the cache brought
    reason: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(slots=True)
class Replay:
    """One run: the engine, its clock and what came of it so far. `service`: by window and client, tokens as `fair` weighs them."""

    engine: Engine
    clock: VirtualClock
    setting: Setting
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    service: defaultdict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    num_open: int = 0  # requests that have not ended
    steps: int = 0
    watch: Callable[[Replay], None] = lambda replay: None  # called after every step

    def in_time(self, requests: Sequence[Offered], stretch: float) -> None:
        """Requests arrive at the trace's times, so many times further apart."""
        for request in requests:
            at = request.at * stretch
            while self.engine.has_work and self.clock.now < at:
                self._step()
            self.clock.now = max(self.clock.now, at)
            self._add(request, at)
        self._finish()

    def saturated(self, requests: Sequence[Offered], outstanding: int) -> None:
        """So many requests are there at any moment until the list ends."""
        for request in requests:
            while self.num_open >= outstanding:
                self._step()
            self._add(request, self.clock.now)
        self._finish()

    def _finish(self) -> None:
        while self.engine.has_work:
            self._step()
        self.engine.scheduler.check_integrity()

    def _add(self, request: Offered, at: float) -> None:
        name = str(request.number)
        sampling = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True)
        deadline = at + self.setting.cost.alone_seconds(request.prompt_tokens) * request.kind.patience
        self.outcomes[name] = Outcome(request, at)
        self.num_open += 1
        self.engine.add(
            AddRequest(
                name,
                request.prompt(),
                sampling,
                at,
                client=request.client,
                priority=request.kind.priority,
                deadline=deadline,
            )
        )

    def _step(self) -> None:
        for output in self.engine.step():
            self._take(output)
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self.engine.scheduler.check_integrity()
        self.watch(self)

    def _take(self, output: RequestOutput) -> None:
        outcome = self.outcomes[output.request_id]
        if output.tokens:
            if not outcome.tokens:
                outcome.first = self.clock.now
                outcome.cached = output.num_cached_tokens
                self._serve(outcome, (output.num_prompt_tokens - outcome.cached) * self.setting.scheduler.input_weight)
            outcome.tokens += len(output.tokens)
            outcome.last = self.clock.now
            self._serve(outcome, len(output.tokens) * self.setting.scheduler.output_weight)
        if output.finish_reason is not None:
            outcome.reason = output.finish_reason.value
            self.num_open -= 1

    def _serve(self, outcome: Outcome, amount: float) -> None:
        self.service[int(self.clock.now // self.setting.window), outcome.offered.client] += amount


def make(setting: Setting) -> Replay:
    """An engine on a clock of its own, with nothing in it yet. Raises PagemillError for a policy that there isn't."""
    clock = VirtualClock()
    engine = Engine(
        ModelledRunner(setting.cost, clock),
        setting.limits,
        setting.scheduler,
        clock=clock,
        prefix_caching=setting.cache.prefix_caching,
        step_model=StepModel(setting.cost.step),
    )
    return Replay(engine, clock, setting)


def limits_for(requests: Sequence[Offered], num_blocks: int, block_size: int, num_host_blocks: int = 0) -> EngineLimits:
    """A model that takes the longest of the requests."""
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    return EngineLimits(longest, VOCAB_SIZE, num_blocks, block_size, num_host_blocks)


def reasons(outcomes: Sequence[Outcome]) -> Counter[str]:
    return Counter(outcome.reason or "never ended" for outcome in outcomes)
