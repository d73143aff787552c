"""All that the conditions are made from, and what follows from it: whether it serves, grows, or has stopped in a rollout.

Pure. Made by `status` once a reconcile; `conditions` puts it into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagemill_operator.fleet import Fleet
from pagemill_operator.preflight import PASSED, Preflight
from pagemill_operator.status_fields import Capacity
from pagemill_operator.waiting import Trouble

SCALING = "Scaling"  # the reason of Ready while more replicas of what serves are on their way


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the fleet, and what the last one said."""

    fleet: Fleet
    refusal: Trouble | None  # why the spec, or a write without which nothing serves, was not accepted
    beside: tuple[Trouble, ...] = ()  # what is wrong beside the replicas, which serve all the same
    before: Preflight = PASSED
    utilization: float | None = None  # of the GPU, where the spec can be read and asks for one
    capacity: Capacity | None = None  # as a server measured it
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the conditions of the last look, by type
    former_replicas: int = 0  # that were wanted then
    former_ready: int = 0  # that answered
    max_failures: int = 1  # at so many a rollout stops
    asleep: bool = False  # at zero because nothing comes, and the next request wakes it

    @property
    def was_ready(self) -> bool:
        return bool(self.said.get("Ready", {}).get("status") == "True")

    @property
    def silent(self) -> bool:
        """A replica that starts is too busy to answer: what was known of its load stays, or it would go to and fro."""
        starting = self.fleet.starting
        busy = any(pod.running and not pod.answered for pod in starting)
        return busy and not any(pod.phase for pod in starting)

    @property
    def trouble(self) -> Trouble | None:
        """What keeps the newest replicas from serving."""
        return self.refusal or self.before.trouble or self.fleet.trouble

    @property
    def rollout_failed(self) -> str | None:
        """Where the newest spec, in its preflight or in a replica, is in trouble and replicas of the former one serve."""
        trouble, old = self.trouble, sum(pod.ready for pod in self.fleet.older)
        if trouble is None or self.refusal is not None or trouble.passing or not old:
            return None
        most = min(self.max_failures, self.fleet.wanted.replicas)
        failed = max(1, sum(pod.trouble is not None for pod in self.fleet.newest))  # one that can't be made is no pod
        if self.before.trouble is not None:
            where = "before its first replica"
        elif failed < most:
            return None  # it goes on
        else:
            where = "at its first replica" if most == 1 else f"at {most} that failed"
        serve = f"{_count(old, 'replica')} of the former spec {'serves' if old == 1 else 'serve'}"
        return f"the rollout has stopped {where}: {trouble.reason}: {trouble.message}; {serve}"

    @property
    def rollout_goes_on(self) -> bool:
        """A replica of the newest spec is in trouble, and the rollout may lose more (`maxFailures`) before it stops."""
        if self.fleet.trouble is None or self.refusal is not None or self.before.trouble is not None:
            return False
        return any(pod.ready for pod in self.fleet.older) and self.rollout_failed is None

    @property
    def grows(self) -> bool:
        """More replicas of a spec that serves are on their way, and of those that answered none was lost."""
        fleet = self.fleet
        scaling = self.said.get("Ready", {}).get("reason") == SCALING
        more = scaling or fleet.wanted.replicas > self.former_replicas
        return self.was_ready and more and not fleet.older and 0 < self.former_ready <= fleet.ready

    @property
    def serves(self) -> bool:
        """Every wanted replica of the newest spec answers."""
        seen = self.fleet.settled or self.was_ready  # a first replica is not there before its controller has looked
        return seen and self.fleet.ready >= self.fleet.wanted.replicas


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
