"""Copies between the tiers: planned, under way, done. Makes the `BlockCopy` and `Fetch` of a step; the runner carries them out.

Owns the host tier's books, so that a host block is never given away while a copy reads it, nor read before a copy has filled it.
Called by `kv_cache` only; knows no sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from itertools import count

from pagemill_server.engine.block_pool import Evicted
from pagemill_server.engine.host_tier import HostTier
from pagemill_server.engine.schedule import BlockCopy, Fetch


class Transfers:
    def __init__(self, num_host_blocks: int) -> None:
        self.host = HostTier(num_host_blocks)
        self.num_offloaded = 0  # blocks, total
        self.num_fetched = 0
        self._to_offload: list[BlockCopy] = []  # since the last step was planned
        self._offloading: tuple[BlockCopy, ...] = ()  # in the step that was planned last
        self._fetches: dict[int, Fetch] = {}  # under way, by ticket
        self._tickets = count()

    # Device → host.

    def offload(self, evicted: Iterable[Evicted]) -> None:
        for gone in evicted:
            target = self.host.offer(gone.hash)
            if target is not None:
                self._to_offload.append(BlockCopy(gone.block, target))

    def take_offloads(self) -> tuple[BlockCopy, ...]:
        """Those of the step that is planned now; those of the step before have arrived."""
        self.confirm_offloads()
        self._offloading, self._to_offload = tuple(self._to_offload), []
        return self._offloading

    def confirm_offloads(self) -> None:
        """The step that carried them has succeeded."""
        self.host.arrived(copy.target for copy in self._offloading)
        self.num_offloaded += len(self._offloading)
        self._offloading = ()

    def undo_offloads(self, copies: Iterable[BlockCopy]) -> None:
        """The step that carried them failed."""
        undone = frozenset(copies)
        assert undone <= set(self._offloading), "copies of a step that is over"
        self.host.undo(copy.target for copy in undone)
        self._offloading = tuple(copy for copy in self._offloading if copy not in undone)

    # Host → device.

    def begin(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> Fetch:
        """Copies from pinned host blocks (`host.pin`), which stay so until the end."""
        fetch = Fetch(next(self._tickets), tuple(map(BlockCopy, sources, targets)))
        self._fetches[fetch.ticket] = fetch
        return fetch

    @property
    def under_way(self) -> Set[int]:
        """Tickets."""
        return self._fetches.keys()

    def targets(self, tickets: Iterable[int]) -> Set[int]:
        return {copy.target for ticket in tickets for copy in self._fetches[ticket].copies}

    def end(self, ticket: int) -> Fetch | None:
        """The runner has reported it. None for a ticket that isn't under way."""
        fetch = self._fetches.pop(ticket, None)
        if fetch is not None:
            self.num_fetched += len(fetch.copies)
            for copy in reversed(fetch.copies):  # so that a chain's last block is evicted first
                self.host.unpin(copy.source)
        return fetch

    def check_integrity(self) -> None:
        """Raises KVCacheCorrupted."""
        self.host.check_integrity(Counter(copy.source for fetch in self._fetches.values() for copy in fetch.copies))
