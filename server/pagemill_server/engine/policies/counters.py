"""Virtual token counters: how much each of several parties has been served, and what one that comes back is lifted to.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024, arXiv 2401.00588): whoever begins to wait is lifted to
the least counter of those that wait, so that nobody saves up service while away. Names are anybody's invention, so what is kept of
those that are away is bounded. Used by `fair`, for clients and for the users below a client.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagemill_server.engine.lazy_heap import LazyHeap

AWAY_KEPT = 1024  # counters of parties that are away, at most


class Counters:
    """One counter a name. A party waits while one of its sequences does, and is here while one waits or runs."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._served: dict[str, float] = {}  # of all that are here, and of some that are away
        self._waiting: dict[str, int] = {}  # sequences that wait
        self._least_waiting = LazyHeap[str](lambda name: (self[name],))
        self._here: dict[str, int] = {}  # sequences that wait or run
        self._last_waited = ""  # who waited when the queue was last seen to empty
        self._floor = 0.0  # no counter below it is kept, and nobody starts below it

    def __len__(self) -> int:
        return len(self._served)

    def __getitem__(self, name: str) -> float:
        return self._served.get(name, self._floor)

    @property
    def idle(self) -> bool:
        return not self._here

    def charge(self, name: str, cost: float) -> None:
        if name in self._here:
            self._served[name] = self[name] + cost / self._weights.get(name, 1.0)
            if cost < 0 and name in self._waiting:
                self._least_waiting.lower(name)

    def come(self, name: str) -> None:
        """A sequence of its begins to be here."""
        self._here[name] = self._here.get(name, 0) + 1

    def wait(self, name: str) -> None:
        """A sequence of its that is here begins to wait."""
        if name not in self._waiting:
            least = self[next(iter(self._least_waiting.least(1)), self._last_waited)]
            self._served[name] = max(self[name], least)
            self._least_waiting.lower(name)
            self._forget(least)
        self._waiting[name] = self._waiting.get(name, 0) + 1

    def run(self, name: str) -> None:
        """A sequence of its waits no more."""
        if not _count_down(self._waiting, name):
            self._least_waiting.drop(name)
        self._last_waited = name

    def go(self, name: str) -> None:
        """A sequence of its is here no more. When the last of all has gone nobody is owed anything, and all begin anew."""
        _count_down(self._here, name)
        if self.idle:
            self._served.clear()
            self._floor = 0.0

    def _forget(self, least: float) -> None:
        """Drop counters of those that are away: what they would be lifted from anyhow, and the least of what is too many.

        Nobody gains by being forgotten: the floor rises to what was dropped.
        """
        if len(self._served) <= len(self._here) + AWAY_KEPT:
            return
        away = sorted((served, name) for name, served in self._served.items() if name not in self._here)
        for place, (served, name) in enumerate(away):
            if served > least and 2 * (len(away) - place) <= AWAY_KEPT:
                break
            if served > least:
                self._floor = max(self._floor, served)
            del self._served[name]


def _count_down(counts: dict[str, int], name: str) -> int:
    """What is left."""
    counts[name] -= 1
    left = counts[name]
    if not left:
        del counts[name]
    return left
