"""Lower numbers first, as vLLM's clients know it, with ageing: waiting `aging_seconds` is worth one level.

A sequence's key is its arrival plus priority times `aging_seconds`, and never changes. So nothing waits without bound: before one
of priority p go only those that came less than (p + HIGHEST) x aging_seconds after it, whatever comes later; and once they have
gone, nothing displaces it any more. Priorities beyond HIGHEST either way count as that, or a client could name a number that
takes the bound away.
"""

from __future__ import annotations

from collections.abc import Reversible

from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.sequence import Sequence

HIGHEST = 100  # levels above and below 0


class Priority(Policy):
    """The last by the same order gives way; a newcomer displaces only whom it precedes in that order and in plain priority."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.arrival + _level(sequence) * self.config.aging_seconds,)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        candidates = list(reversed(running))
        if newcomer is not None:
            place, level = self.key(newcomer), _level(newcomer)
            candidates = [s for s in candidates if _level(s) > level and self.key(s) > place]
        return max(candidates, key=lambda s: (self.key(s), s.seq_id), default=None)


def _level(sequence: Sequence) -> int:
    return max(-HIGHEST, min(HIGHEST, sequence.request.priority))
