"""The one owner of KV memory: which block holds which tokens of which sequence.

Blocks are numbers here; the tensors behind them are the runner's. The scheduler calls `grow` before tokens are computed and
`release` when a sequence ends or is preempted; nobody else keeps a block. No torch, and no knowledge of policies.
"""

from __future__ import annotations

from collections import deque

from pagemill_server.engine.errors import KVCacheCorrupted
from pagemill_server.engine.sequence import Sequence


class KVCache:
    """A pool of `num_blocks` blocks of `block_size` tokens, and the block table of each sequence that holds some."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0, num_blocks
        assert block_size > 0, block_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))
        # Tuples, replaced when a sequence grows (once in block_size steps): a step hands them over without a copy.
        self._tables: dict[int, tuple[int, ...]] = {}
        self._num_held = 0

    @property
    def capacity(self) -> int:
        """Tokens, were one sequence to have all of it."""
        return self.num_blocks * self.block_size

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but whose content is kept for a prefix to come: none, there is no prefix cache yet."""
        return 0

    @property
    def num_held(self) -> int:
        return self._num_held

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, 0..1."""
        return self._num_held / self.num_blocks

    @property
    def holders(self) -> frozenset[int]:
        """The seq_ids that hold blocks."""
        return frozenset(self._tables)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let the sequence hold blocks for positions 0 .. num_tokens-1. All of them or none; False where too few are free."""
        table = self._tables.get(sequence.seq_id, ())
        missing = self.blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        self._tables[sequence.seq_id] = table + tuple(self._free.popleft() for _ in range(missing))
        self._num_held += missing
        return True

    def table(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """The blocks that hold positions 0 .. num_tokens-1, in order. The sequence must have grown to that length."""
        table = self._tables[sequence.seq_id]
        needed = self.blocks_for(num_tokens)
        assert needed <= len(table), f"sequence {sequence.seq_id} holds {len(table)} blocks of the {needed} it uses"
        return table if needed == len(table) else table[:needed]

    def release(self, sequence: Sequence) -> None:
        """Take all of a sequence's blocks back. The only way back to the pool; a second call does nothing."""
        table = self._tables.pop(sequence.seq_id, ())
        self._free.extend(table)
        self._num_held -= len(table)

    def check_integrity(self) -> None:
        """Free + cached + held = total, and each block in one place only. O(blocks): for tests and for idle moments.

        Raises KVCacheCorrupted.
        """
        held = [block for table in self._tables.values() for block in table]
        if len(held) != self._num_held:
            raise KVCacheCorrupted(f"{self._num_held} blocks are booked as held, the block tables name {len(held)}")
        total = self.num_free + self.num_cached + self.num_held
        if total != self.num_blocks:
            raise KVCacheCorrupted(
                f"free {self.num_free} + cached {self.num_cached} + held {self.num_held} = {total}, not {self.num_blocks} blocks"
            )
        if set(held) | set(self._free) != set(range(self.num_blocks)):
            raise KVCacheCorrupted("a block is in two places, and another in none")
