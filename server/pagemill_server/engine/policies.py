"""Who goes first, who gives way, who may come in: the part of scheduling that users choose (`--scheduling-policy`).

A policy decides nothing else. Budget, feasibility and progress are the scheduler's: it asks these three hooks and holds its
own promises whatever they answer. Knows sequences; knows neither blocks nor the model.
"""

from __future__ import annotations

from collections.abc import Reversible
from typing import Protocol

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.engine.sequence import Sequence

NOT_YET = ("priority", "fair", "deadline")


class Policy(Protocol):
    """The three hooks, called on the engine's thread only, so they may keep state; they must not change the sequences."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The place in the waiting queue, least first. Asked when the sequence is queued, anew after a preemption.

        Among equals the preempted go first, then the earlier.
        """
        ...

    def victim(self, running: Reversible[Sequence]) -> Sequence:
        """The one of `running` (never empty, in order of admission) that loses its blocks so that another can grow."""
        ...

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        """Whether the head of the queue may run now. Not asked when nothing runs: then it is admitted."""
        ...


class Fcfs:
    """First come, first served; the last admitted gives way, so that the oldest always advances."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.arrival,)

    def victim(self, running: Reversible[Sequence]) -> Sequence:
        return next(iter(reversed(running)))

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return True


def load(name: str) -> Policy:
    """The policy of that name. Raises PagemillError (InvalidConfiguration); quick, so that flags can be checked at the door."""
    if name == "fcfs":
        return Fcfs()
    if name in NOT_YET or ":" in name:
        reason = f'The scheduling policy "{name}" is not available yet; the only one is "fcfs".'
    else:
        reason = f'There is no scheduling policy "{name}"; the only one is "fcfs".'
    raise PagemillError(FailureReason.INVALID_CONFIGURATION, reason, {"schedulingPolicy": "fcfs"})
