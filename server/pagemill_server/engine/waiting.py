"""The waiting queue, in the policy's order, from which anybody leaves in O(1). Used by `scheduler` and `admission` only.

Each lane is a heap by the key that the policy gave when a sequence was queued; the queue's head is the least of the lanes' heads
by the policy's `turn` now. So what a policy counts of a lane moves all of the lane at once, and nothing is sorted anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from itertools import count, islice

from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence

Place = tuple[tuple[float, ...], bool, int]
Entry = tuple[Place, int, Sequence]


class WaitingQueue:
    """Among sequences with equal keys the preempted come first, then the earlier."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[Hashable, list[Entry]] = {}  # heaps; an empty one is dropped
        self._entries: dict[int, Entry] = {}  # of who waits, by seq_id; the heaps may hold others, that left
        self._num_stale = 0  # entries in the heaps of those that left
        self._counter = count()  # two entries of one sequence, one of them stale, must not be equal
        self.num_tokens = 0  # of all that wait

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.seq_id in self._entries

    def members(self) -> list[Sequence]:
        """Everybody, in no order."""
        return [sequence for _, _, sequence in self._entries.values()]

    def push(self, sequence: Sequence) -> None:
        assert sequence.seq_id not in self._entries, sequence.seq_id
        self._policy.queued(sequence)
        lane = self._lanes.setdefault(self._policy.lane(sequence), [])
        place = (self._policy.key(sequence), sequence.num_preemptions == 0, sequence.seq_id)
        entry = (place, next(self._counter), sequence)
        heapq.heappush(lane, entry)
        self._entries[sequence.seq_id] = entry
        self.num_tokens += sequence.num_tokens

    def head(self) -> Sequence | None:
        return next(iter(self.first(1)), None)

    def first(self, number: int) -> list[Sequence]:
        """The first so many, in order; fewer where fewer wait."""
        self._drop_stale_heads()
        lanes = [self._in_order(lane) for lane in self._lanes.values()]
        if len(lanes) == 1:
            return list(islice(lanes[0], number))
        return list(islice(heapq.merge(*lanes, key=self.turn), number))

    def turn(self, sequence: Sequence) -> Place:
        """Where a sequence stands now, whether it waits or runs: the least goes first."""
        return (self._policy.turn(sequence), sequence.num_preemptions == 0, sequence.seq_id)

    def remove(self, sequence: Sequence) -> bool:
        """Forget a sequence, wherever it stands; False, and nothing done, for one that isn't waiting."""
        if self._entries.pop(sequence.seq_id, None) is None:
            return False
        self.num_tokens -= sequence.num_tokens
        # Its entry waits for its turn at the head of its lane; rebuild once such entries are the greater part.
        self._num_stale += 1
        if self._num_stale > len(self._entries) + 64:
            self._rebuild()
        return True

    def _waits(self, entry: Entry) -> bool:
        return self._entries.get(entry[2].seq_id) is entry

    def _drop_stale_heads(self) -> None:
        if not self._num_stale:
            return
        for name, lane in tuple(self._lanes.items()):
            while lane and not self._waits(lane[0]):
                heapq.heappop(lane)
                self._num_stale -= 1
            if not lane:
                del self._lanes[name]

    def _in_order(self, lane: list[Entry]) -> Iterator[Sequence]:
        """A heap's sequences from the least on, without taking it apart: O(log n) each."""
        frontier = [(lane[0][:2], 0)]
        while frontier:
            _, index = heapq.heappop(frontier)
            if self._waits(lane[index]):
                yield lane[index][2]
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(lane):
                    heapq.heappush(frontier, (lane[child][:2], child))

    def _rebuild(self) -> None:
        lanes = {name: [entry for entry in lane if self._waits(entry)] for name, lane in self._lanes.items()}
        self._lanes = {name: lane for name, lane in lanes.items() if lane}
        for lane in self._lanes.values():
            heapq.heapify(lane)
        self._num_stale = 0
