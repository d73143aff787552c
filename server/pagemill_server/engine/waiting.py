"""The waiting queue: a heap in the policy's order, from which an aborted sequence leaves in O(1). Used by `scheduler` only."""

from __future__ import annotations

import heapq

from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence

Place = tuple[tuple[float, ...], bool, int]


class WaitingQueue:
    """Among sequences with equal keys the preempted come first, then the earlier."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Place, Sequence]] = []
        self._members: dict[int, Sequence] = {}  # who really waits; the heap may still hold some that left

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.seq_id in self._members

    def push(self, sequence: Sequence) -> None:
        assert sequence.seq_id not in self._members, sequence.seq_id
        place = (self._policy.key(sequence), sequence.num_preemptions == 0, sequence.seq_id)
        self._members[sequence.seq_id] = sequence
        heapq.heappush(self._heap, (place, sequence))

    def head(self) -> Sequence | None:
        while self._heap and self._heap[0][1].seq_id not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        sequence = self.head()
        assert sequence is not None, "nothing waits"
        heapq.heappop(self._heap)
        del self._members[sequence.seq_id]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it stands; does nothing for one that isn't waiting."""
        if self._members.pop(sequence.seq_id, None) is None:
            return
        # Entries of those that left wait for their turn at the head; rebuild once they are the greater part.
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = [entry for entry in self._heap if entry[1].seq_id in self._members]
            heapq.heapify(self._heap)
