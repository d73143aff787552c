"""A model runner that computes nothing: it lets a virtual clock pass by what each step would have taken.

The engine above it is the real one, so a replay on it shows what the scheduler and the block pool do, at the speed of their own
code. Used by `replay_run`; what a step takes comes from `step_cost`.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.step_cost import StepCost
from pagemill_server.engine.request import SampledToken
from pagemill_server.engine.schedule import Fetch, RunnerOutput, SchedulerOutput

TOKEN = SampledToken(0)  # what is "sampled": nobody reads it


class VirtualClock:
    """Seconds since the replay began; moved by the runner, and by the replay while nothing is to do."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class _Copying:
    """One fetch, on its way."""

    ticket: int
    seconds: float
    done_at: float


class ModelledRunner:
    """Implements `engine.ports.ModelRunner`. Steps wait for what leaves the device; what is fetched comes one after another beside
    the steps, and takes nothing from them.
    """

    def __init__(self, cost: StepCost, clock: VirtualClock) -> None:
        self._cost, self._clock = cost, clock
        self._copying: list[_Copying] = []  # in the order in which they are done

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self._clock.now += self._cost.copy_seconds(len(output.offloads))
        self._begin(output.fetches)
        if output.sequences:
            self._clock.now += self._cost.step_seconds(output)
        elif self._copying:
            self._clock.now = max(self._clock.now, self._copying[0].done_at)
        sampled = {entry.seq_id: TOKEN for entry in output.sequences if entry.sampling is not None}
        return self._fetched(sampled) if self._copying else RunnerOutput(sampled)

    def _begin(self, fetches: tuple[Fetch, ...]) -> None:
        for fetch in fetches:
            begun = max(self._copying[-1].done_at if self._copying else 0.0, self._clock.now)
            seconds = self._cost.copy_seconds(len(fetch.copies))
            self._copying.append(_Copying(fetch.ticket, seconds, begun + seconds))

    def _fetched(self, sampled: dict[int, SampledToken]) -> RunnerOutput:
        done = [copying for copying in self._copying if copying.done_at <= self._clock.now]
        self._copying = self._copying[len(done) :]
        return RunnerOutput(
            sampled,
            fetched=frozenset(copying.ticket for copying in done),
            fetch_seconds=sum(copying.seconds for copying in done),
        )
