"""The books of the second tier: which host block holds which content. The tensors behind the numbers are `model/host_pool`'s.

Called by `kv_cache` only; knows neither sequences nor device blocks. A host block is free, arriving (it is the target of a copy
that the running step carries out: nobody may read it yet), idle (in the order of last use) or pinned (the source of a copy under
way: it keeps its content until that is done).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from pagemill_server.engine.errors import KVCacheCorrupted


class HostTier:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._arriving: set[int] = set()
        self._idle: dict[int, None] = {}  # the least recently used first
        self._pins: Counter[int] = Counter()
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def find(self, content: bytes) -> int | None:
        """The block that holds it, if it may be read."""
        block = self._by_hash.get(content)
        return None if block in self._arriving else block

    def offer(self, content: bytes) -> int | None:
        """Where content that leaves the device is to be copied; None where it needn't be (it is here) or can't (all is pinned)."""
        present = self._by_hash.get(content)
        if present is not None:
            self._touch(present)
            return None
        if not self._free:
            if not self._idle:
                return None
            self._drop(next(iter(self._idle)))
        block = self._free.popleft()
        self._arriving.add(block)
        self._hashes[block] = content
        self._by_hash[content] = block
        return block

    def arrived(self, blocks: Iterable[int]) -> None:
        """The copies were made: their content may be read."""
        for block in blocks:
            self._arriving.remove(block)
            self._rest(block)

    def undo(self, blocks: Iterable[int]) -> None:
        """The copies were not made, or nobody knows."""
        for block in blocks:
            self._arriving.remove(block)
            self._drop(block)

    def pin(self, block: int) -> None:
        """A copy out of it begins."""
        self._idle.pop(block, None)
        self._pins[block] += 1

    def unpin(self, block: int) -> None:
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
            self._rest(block)

    def forget(self, content: bytes) -> None:
        """Nobody finds it any more."""
        block = self._by_hash.pop(content, None)
        if block is not None:
            self._hashes[block] = None
            if block in self._idle:
                self._drop(block)

    def _rest(self, block: int) -> None:
        """Neither arriving nor pinned any more: the most recently used, unless it was forgotten meanwhile."""
        if self._hashes[block] is None:
            self._free.append(block)
        else:
            self._idle[block] = None

    def _touch(self, block: int) -> None:
        if block in self._idle:
            del self._idle[block]
            self._idle[block] = None

    def _drop(self, block: int) -> None:
        content, self._hashes[block] = self._hashes[block], None
        if content is not None:
            del self._by_hash[content]
        self._idle.pop(block, None)
        self._free.append(block)

    def check_integrity(self, pins: Counter[int]) -> None:
        """Every block in one state, pinned as often as copies are under way. O(blocks). Raises KVCacheCorrupted."""
        if pins != self._pins:
            raise KVCacheCorrupted(f"host blocks {dict(self._pins)} are pinned, copies under way read {dict(pins)}")
        places = [*self._free, *self._arriving, *self._idle, *self._pins]
        if sorted(places) != list(range(self.num_blocks)):
            raise KVCacheCorrupted("a host block is in two places, or in none")
        named = {content: block for block, content in enumerate(self._hashes) if content is not None}
        if named != self._by_hash or not self._idle.keys() <= set(named.values()):
            raise KVCacheCorrupted("a host block is found by a name that isn't its own")
        if any(self._hashes[block] is not None for block in self._free):
            raise KVCacheCorrupted("a free host block has a name")
