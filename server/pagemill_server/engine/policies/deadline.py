"""Earliest deadline first, for the time to the first token.

Due is what the request asks for, or its arrival plus `ttft_ms`. Who had its first token has met its deadline: it gives way first,
and when it is queued again it is due `ttft_ms` from then, so that it comes back in bounded time and does not at once take the
place of the one that displaced it.
"""

from __future__ import annotations

from collections.abc import Reversible

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.sequence import Sequence


class Deadline(Policy):
    """A newcomer may displace one that had its first token, once half of its own time has gone by."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._target = config.ttft_ms / 1000  # seconds
        self._again: dict[int, float] = {}  # when those are due that were preempted after their first token; by seq_id

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (self._again.get(sequence.seq_id, self._due(sequence)),)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        answering = [s for s in reversed(running) if s.num_output_tokens]
        if newcomer is not None and not self._presses(newcomer):
            return None
        return max(answering, key=lambda s: (self._due(s), s.seq_id), default=None)

    def queued(self, sequence: Sequence) -> None:
        if sequence.num_output_tokens:
            self._again[sequence.seq_id] = self.clock() + self._target

    def left(self, sequence: Sequence) -> None:
        self._again.pop(sequence.seq_id, None)

    def _due(self, sequence: Sequence) -> float:
        asked = sequence.request.deadline
        return sequence.request.arrival + self._target if asked is None else asked

    def _presses(self, newcomer: Sequence) -> bool:
        """It has waited half of its time, has some left, and would stand before the one that it displaces.

        Whose time has run out displaces nobody: under more load than can be met, each would cost another its time as well.
        """
        now, due = self.clock(), self._due(newcomer)
        half = (newcomer.request.arrival + due) / 2
        return not newcomer.num_output_tokens and due - self._target < now < due and half <= now
