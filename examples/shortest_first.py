"""A scheduling policy of one's own: the cheapest request first, and nobody for ever.

    PYTHONPATH=examples pagemill serve MODEL --scheduling-policy shortest_first:ShortestFirst

What a request will take is the engine's own estimate, from steps that it has measured. Each second of it counts as PATIENCE seconds
of waiting, so a long request goes behind short ones that come later, but only behind those of that time. docs/scheduling.md tells
what else a policy may decide.
"""

from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence

PATIENCE = 10.0


class ShortestFirst(Policy):
    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The place in the waiting queue, least first."""
        return (sequence.request.arrival + PATIENCE * self.cost(sequence).seconds,)
