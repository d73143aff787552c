"""The waiting queue, in the policy's order, from which anybody leaves in O(1). Used by `scheduler`, `admission` and `encoder` only.

Each lane is a heap by the key that the policy gave when a sequence was queued; the queue's head is the least of the lanes' heads
by the policy's `turn` now. So what a policy counts of a lane moves all of the lane at once, and nothing is sorted anew. Of a
policy that says whose turn may have `fallen`, only the foremost lanes are asked: a thousand clients that wait cost no
more than ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from itertools import count, islice

from pagemill_server.engine.lazy_heap import LazyHeap
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence

Place = tuple[tuple[float, ...], bool, int]
Entry = tuple[Place, int, Sequence]


class _Lane:
    """A heap, never empty, whose least waits; what is behind it may have left."""

    def __init__(self, name: Hashable, group: _Group) -> None:
        self.name, self.group = name, group
        self.entries: list[Entry] = []

    @property
    def head(self) -> Sequence:
        return self.entries[0][2]


class _Group:
    """Lanes whose turns begin with the same number: it moves all of them at once, so among them it isn't looked at."""

    def __init__(self, name: Hashable, turn: Callable[[Sequence], Place]) -> None:
        self.name = name
        self.num_lanes = 0
        self.in_order = LazyHeap[_Lane](lambda lane: _within(turn(lane.head)))

    @property
    def head(self) -> Sequence:
        return self.in_order.least(1)[0].head


def _within(place: Place) -> tuple[object, ...]:
    return (place[0][1:], *place[1:])


class WaitingQueue:
    """Among sequences with equal keys the preempted come first, then the earlier."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[Hashable, _Lane] = {}
        self._groups: dict[Hashable, _Group] = {}
        self._in_order = LazyHeap[_Group](lambda group: self.turn(group.head))
        self._news: dict[
            _Lane, None
        ] = {}  # with another head than when their turn was last asked, which may go earlier
        self._entries: dict[int, tuple[Entry, _Lane]] = {}  # of who waits, by seq_id; lanes may hold others, that left
        self._num_stale = 0  # entries in the lanes of those that left
        self._counter = count()  # two entries of one sequence, one of them stale, must not be equal
        self.num_tokens = 0  # of all that wait

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.seq_id in self._entries

    def members(self) -> list[Sequence]:
        """Everybody, in no order."""
        return [sequence for (_, _, sequence), _ in self._entries.values()]

    def push(self, sequence: Sequence) -> None:
        assert sequence.seq_id not in self._entries, sequence.seq_id
        self._policy.queued(sequence)
        lane = self._lane_of(sequence)
        place = (self._policy.key(sequence), sequence.num_preemptions == 0, sequence.seq_id)
        entry = (place, next(self._counter), sequence)
        heapq.heappush(lane.entries, entry)
        if lane.entries[0] is entry:
            self._news[lane] = None
        self._entries[sequence.seq_id] = (entry, lane)
        self.num_tokens += sequence.num_tokens

    def head(self) -> Sequence | None:
        return next(iter(self.first(1)), None)

    def first(self, number: int) -> list[Sequence]:
        """The first so many, in order; fewer where fewer wait."""
        lanes = [self._waiting_of(lane) for lane in self._foremost(number)]
        if len(lanes) == 1:
            return list(islice(lanes[0], number))
        return list(islice(heapq.merge(*lanes, key=self.turn), number))

    def turn(self, sequence: Sequence) -> Place:
        """Where a sequence stands now, whether it waits or runs: the least goes first."""
        return (self._policy.turn(sequence), sequence.num_preemptions == 0, sequence.seq_id)

    def remove(self, sequence: Sequence) -> bool:
        """Forget a sequence, wherever it stands; False, and nothing done, for one that isn't waiting."""
        entry, lane = self._entries.pop(sequence.seq_id, (None, None))
        if entry is None or lane is None:
            return False
        self.num_tokens -= sequence.num_tokens
        self._num_stale += 1
        while lane.entries and not self._waits(lane.entries[0]):
            heapq.heappop(lane.entries)
            self._num_stale -= 1
        if not lane.entries:
            self._close(lane)
        # Others that left wait for their turn at the head of their lane; rebuild once they are the greater part.
        if self._num_stale > len(self._entries) + 64:
            self._rebuild()
        return True

    def _waits(self, entry: Entry) -> bool:
        known = self._entries.get(entry[2].seq_id)
        return known is not None and known[0] is entry

    def _lane_of(self, sequence: Sequence) -> _Lane:
        """The one that it is to be queued in, made where there is none."""
        name = self._policy.lane(sequence)
        lane = self._lanes.get(name)
        if lane is None:
            group_name = self._policy.group(sequence)
            group = self._groups.setdefault(group_name, _Group(group_name, self.turn))
            group.num_lanes += 1
            lane = self._lanes[name] = _Lane(name, group)
        return lane

    def _close(self, lane: _Lane) -> None:
        """Nobody waits in it any more."""
        group = lane.group
        del self._lanes[lane.name]
        self._news.pop(lane, None)
        group.in_order.drop(lane)
        group.num_lanes -= 1
        if not group.num_lanes:
            del self._groups[group.name]
            self._in_order.drop(group)

    def _foremost(self, number: int) -> list[_Lane]:
        """Lanes among whose sequences the first so many are; all of them, of a policy that doesn't say what has moved."""
        if len(self._lanes) < 2 or (fallen := self._policy.fallen()) is None:
            return list(self._lanes.values())
        groups = dict.fromkeys(lane.group for lane in self._news)
        for sequence in fallen:
            if (lane := self._lanes.get(self._policy.lane(sequence))) is not None:
                self._news[lane] = None
            if (group := self._groups.get(self._policy.group(sequence))) is not None:
                groups[group] = None
        for lane in self._news:
            lane.group.in_order.lower(lane)
        self._news.clear()
        for group in groups:
            self._in_order.lower(group)
        return [lane for group in self._in_order.least(number) for lane in group.in_order.least(number)]

    def _waiting_of(self, lane: _Lane) -> Iterator[Sequence]:
        """Who waits in a lane from the least on, without taking its heap apart: O(log n) each."""
        entries = lane.entries
        frontier = [(entries[0][:2], 0)]
        while frontier:
            _, index = heapq.heappop(frontier)
            if self._waits(entries[index]):
                yield entries[index][2]
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(entries):
                    heapq.heappush(frontier, (entries[child][:2], child))

    def _rebuild(self) -> None:
        for lane in self._lanes.values():
            lane.entries = [entry for entry in lane.entries if self._waits(entry)]
            heapq.heapify(lane.entries)
        self._num_stale = 0
