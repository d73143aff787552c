"""Things in the order of places that mostly rise, by asking few of them where they stand.

A thing's place is looked at when the place that it had before is the least of all; so what rises unseen costs nothing, and who may
have fallen must be named (`lower`). Used by `waiting` for lanes, and by `policies/counters` for clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
Item = tuple[tuple[object, ...], int, T]


class LazyHeap(Generic[T]):
    """`place` says where a thing stands now, least first: tuples that can be compared."""

    def __init__(self, place: Callable[[T], tuple[object, ...]]) -> None:
        self._place = place
        self._heap: list[Item[T]] = []
        self._items: dict[T, Item[T]] = {}  # of each thing that is here; the heap may hold others, that are out of date
        self._counter = count()  # two items are never compared by their things

    def __len__(self) -> int:
        return len(self._items)

    def lower(self, thing: T) -> None:
        """It is new, or its place may have fallen."""
        self._put(thing, self._place(thing))
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = list(self._items.values())
            heapq.heapify(self._heap)

    def drop(self, thing: T) -> None:
        """It is here no more. A second call does nothing."""
        self._items.pop(thing, None)

    def least(self, number: int) -> list[T]:
        """The first so many, in order; fewer where there are fewer. None is asked twice, whatever it answers."""
        found: list[Item[T]] = []
        asked: set[T] = set()
        while self._heap and len(found) < number:
            item = heapq.heappop(self._heap)
            thing = item[2]
            if self._items.get(thing) is not item:
                continue
            if thing not in asked:
                asked.add(thing)
                if (place := self._place(thing)) > item[0]:
                    self._put(thing, place)
                    continue
            found.append(item)
        for item in found:
            heapq.heappush(self._heap, item)
        return [item[2] for item in found]

    def _put(self, thing: T, place: tuple[object, ...]) -> None:
        item = (place, next(self._counter), thing)
        self._items[thing] = item
        heapq.heappush(self._heap, item)
