"""The state of every device block: free, cached, held or parked. Called by `kv_cache` only; knows no sequences and no tokens.

free: its content means nothing; what was held last is given out first, since on CPU a block takes no memory until it is written.
cached: nobody holds it, but its content has a name (a hash) that may be asked for; the least recently used is evicted when a
free block is wanted. held: by one sequence or several. parked: a copy into it is under way and nobody holds it, so it is
nobody's until the copy is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass

from pagemill_server.engine.errors import KVCacheCorrupted


@dataclass(frozen=True, slots=True)
class Evicted:
    """A cached block that was taken for new content, and the name of what it held."""

    block: int
    hash: bytes


class BlockPool:
    """Numbers 0 .. num_blocks-1. Within `_cached`, a block's child (what follows it in a chain) always goes before it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        self._free = deque(range(num_blocks))  # the next to be given out first
        self._cached: dict[int, None] = {}  # the least recently used first
        self._parked: set[int] = set()
        self._holders = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._parents: list[bytes | None] = [None] * num_blocks  # the hash before a block's own in its chain
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    @property
    def cached(self) -> tuple[int, ...]:
        """What would be evicted first comes first."""
        return tuple(self._cached)

    @property
    def parked(self) -> tuple[int, ...]:
        return tuple(self._parked)

    @property
    def available(self) -> int:
        """Blocks that `take` could give out now."""
        return len(self._free) + len(self._cached)

    def find(self, content: bytes) -> int | None:
        return self._by_hash.get(content)

    def hash_of(self, block: int) -> bytes | None:
        return self._hashes[block]

    def is_held(self, block: int) -> bool:
        return self._holders[block] > 0

    def take(self, count: int) -> tuple[tuple[int, ...], list[Evicted]]:
        """Blocks for new content, held once each: free ones first, then what was used least recently."""
        assert count <= self.available, f"{count} of {self.available} blocks"
        evicted = [self._evict() for _ in range(count - len(self._free))]
        blocks = tuple(self._free.popleft() for _ in range(count))
        for block in blocks:
            self._holders[block] = 1
        self.num_held += count
        return blocks, evicted

    def hold(self, block: int) -> None:
        """One holder more, of a block that is held or cached."""
        if self._holders[block] == 0:
            del self._cached[block]
            self.num_held += 1
        self._holders[block] += 1

    def drop(self, block: int) -> None:
        """One holder fewer; after the last a block with a name is cached, one without is free."""
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        self.num_held -= 1
        if self._hashes[block] is None:
            self._free.appendleft(block)
        else:
            self._cached[block] = None

    def park(self, block: int) -> None:
        """Its one holder goes while something is still being copied into it."""
        assert self._holders[block] == 1, f"block {block} has {self._holders[block]} holders"
        assert self._hashes[block] is None, f"block {block} has a name before its content is there"
        self._holders[block] = 0
        self.num_held -= 1
        self._parked.add(block)

    def unpark(self, block: int) -> None:
        self._parked.remove(block)
        self._free.appendleft(block)

    def name(self, block: int, content: bytes, parent: bytes | None) -> None:
        """A held block's content may be found from now on, unless another block has it already: then this one stays nameless."""
        if self._hashes[block] is None and self._by_hash.setdefault(content, block) == block:
            self._hashes[block] = content
            self._parents[block] = parent

    def touch(self, content: bytes) -> None:
        """It was used just now, by one who held a copy of its own."""
        block = self._by_hash.get(content)
        if block is not None and block in self._cached:
            del self._cached[block]
            self._cached[block] = None

    def forget(self, content: bytes) -> None:
        """Nobody finds it any more; who holds it goes on holding."""
        block = self._by_hash.get(content)
        if block is None:
            return
        self._unname(block)
        if block in self._cached:
            del self._cached[block]
            self._free.appendleft(block)

    def _evict(self) -> Evicted:
        block = next(iter(self._cached))
        del self._cached[block]
        self._free.append(block)
        return Evicted(block, self._unname(block))

    def _unname(self, block: int) -> bytes:
        content = self._hashes[block]
        assert content is not None, f"block {block} has no name"
        del self._by_hash[content]
        self._hashes[block] = self._parents[block] = None
        return content

    def check_integrity(self, holders: list[int], parked: Set[int]) -> None:
        """Every block in one state, with so many holders, and found by its own name only. O(blocks). Raises KVCacheCorrupted."""
        states = (self.num_free, self.num_cached, self.num_held, self.num_parked)
        if sum(states) != self.num_blocks:
            raise KVCacheCorrupted(
                "free {} + cached {} + held {} + parked {}".format(*states)
                + f" = {sum(states)}, not {self.num_blocks} blocks"
            )
        if holders != self._holders:
            raise KVCacheCorrupted(f"blocks have {self._holders} holders in the books, the block tables name {holders}")
        if parked != self._parked:
            raise KVCacheCorrupted(f"blocks {self._parked} are parked, fetches for nobody write to {parked}")
        held = {block for block, count in enumerate(self._holders) if count}
        if set(self._free) | self._cached.keys() | self._parked | held != set(range(self.num_blocks)):
            raise KVCacheCorrupted("a block is in two places, and another in none")
        named = {content: block for block, content in enumerate(self._hashes) if content is not None}
        if named != self._by_hash or len(named) != self.num_blocks - self._hashes.count(None):
            raise KVCacheCorrupted("a block is found by a name that isn't its own")
        if not self._cached.keys() <= set(named.values()) <= self._cached.keys() | held:
            raise KVCacheCorrupted("a cached block has no name, or one that is free or parked has")

    def check_order(self) -> None:
        """See `_cached`. Raises KVCacheCorrupted."""
        seen: set[bytes] = set()  # names of the blocks that go earlier
        for block in self._cached:
            parent = self._parents[block]
            if parent in seen:
                raise KVCacheCorrupted(f"block {block} would outlive the one before it in its chain")
            content = self._hashes[block]
            assert content is not None
            seen.add(content)
