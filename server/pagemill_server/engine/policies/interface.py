"""What a scheduling policy is: three hooks, and notices for those that keep accounts.

A policy decides the order of the queue, who gives way and who may come in; nothing else. Budget, feasibility and progress are the
scheduler's: it holds its promises whatever a policy answers or raises. Called on the engine's thread only, so a policy may keep
state; it must not change the sequences. A class of the user's own derives from `Policy` and overrides what it wants; it is made
with the `SchedulerConfig` in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Reversible

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.estimate import Cost, Estimator
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.step_model import StepModel


class Policy:
    """First come, first served, in the base class: each hook says what it does when it isn't overridden."""

    clock: Callable[[], float] = staticmethod(time.monotonic)  # the engine's, seconds; `load` puts it there
    cost: Callable[[Sequence], Cost] = staticmethod(
        Estimator(StepModel(), 32).cost
    )  # the engine's estimate; `load` too

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    # Hook 1: order.

    def lane(self, sequence: Sequence) -> Hashable:
        """Sequences of one lane keep their order among themselves. Asked when a sequence is queued. Default: one lane for all."""
        return None

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The place in its lane, least first; among equals the preempted go first, then the earlier. Asked when it is queued."""
        return (sequence.request.arrival,)

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        """The place among the other lanes' sequences, least first. Asked whenever the scheduler looks for the next, so it may
        depend on what the policy has counted of the lane; inside a lane it must rise as `key` does. Default: the key."""
        return self.key(sequence)

    def group(self, sequence: Sequence) -> Hashable:
        """Lanes of one group have the first number of their turns in common, whatever it is by now. Asked with `lane`.
        Default: each lane is a group of its own."""
        return self.lane(sequence)

    def fallen(self) -> Collection[Sequence] | None:
        """Sequences whose lane or group stands before where it stood, by what was counted since the last call; all other turns
        have stayed or risen. With that, only those that may be next are asked for their turn. Default: None, anything may have
        happened, and the head of every lane is asked at each look."""
        return None

    # Hook 2: victim.

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        """Who of `running` (never empty, in order of admission) loses its blocks.

        `newcomer` None: a running sequence must grow, somebody has to go, and None stands for the last admitted. Otherwise the
        queue's head finds no place or no blocks: None lets it wait; a sequence gives way to it, if it has had a token since it
        was admitted. Default: the last admitted for growth, nobody for a newcomer.
        """
        return next(iter(reversed(running))) if newcomer is None else None

    # Hook 3: admission and cost.

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        """Whether the queue's head may run now. Not asked when nothing runs: then it is admitted. Default: yes."""
        return True

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        """A step computed so many prompt tokens for it for the first time (cached or recomputed ones aren't charged), and sampled
        so many. Default: nothing."""

    # Notices.

    def queued(self, sequence: Sequence) -> None:
        """It joins the queue, new or preempted; before its lane and key are asked. A policy that takes over from another is told
        of everybody anew: those that run are queued and admitted."""

    def admitted(self, sequence: Sequence) -> None:
        """It runs from the coming step on; its blocks are its own, and `num_computed_tokens` says what a cache brought."""

    def left(self, sequence: Sequence) -> None:
        """It finished, failed or was aborted, wherever it stood."""
