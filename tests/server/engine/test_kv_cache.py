from collections.abc import Callable

import pytest

from pagemill_server.engine.errors import KVCacheCorrupted
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request


def make_sequence(seq_id: int = 0, prompt: int = 1) -> Sequence:
    return Sequence(seq_id, make_request(prompt), seed=0)


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (32, 8)],
)
def test_a_sequence_holds_the_blocks_that_its_tokens_need(tokens: int, blocks: int) -> None:
    cache = KVCache(num_blocks=8, block_size=4)
    sequence = make_sequence()
    assert cache.grow(sequence, tokens)
    assert len(cache.table(sequence, tokens)) == blocks
    assert (cache.num_held, cache.num_free) == (blocks, 8 - blocks)
    assert cache.usage == blocks / 8
    cache.check_integrity()


def test_growing_keeps_the_blocks_there_were() -> None:
    cache = KVCache(num_blocks=8, block_size=4)
    first, second = make_sequence(0), make_sequence(1)
    cache.grow(first, 5)
    before = cache.table(first, 5)
    cache.grow(second, 4)
    cache.grow(first, 9)
    assert cache.table(first, 9)[:2] == before
    assert cache.table(first, 3) == before[:1]
    assert not set(cache.table(first, 9)) & set(cache.table(second, 4))


def test_growing_is_all_or_nothing() -> None:
    cache = KVCache(num_blocks=3, block_size=4)
    first, second = make_sequence(0), make_sequence(1)
    assert cache.grow(first, 8)
    assert not cache.grow(second, 5)
    assert cache.num_free == 1
    assert cache.holders == {0}
    assert not cache.grow(first, 13)
    assert len(cache.table(first, 8)) == 2
    cache.check_integrity()


def test_release_is_idempotent() -> None:
    cache = KVCache(num_blocks=4, block_size=4)
    first, second = make_sequence(0), make_sequence(1)
    cache.grow(first, 16)
    cache.release(first)
    cache.grow(second, 16)
    cache.release(first)
    assert (cache.num_held, cache.num_free) == (4, 0)
    cache.check_integrity()


def test_what_was_written_before_is_given_out_before_what_nobody_has_written() -> None:
    cache = KVCache(num_blocks=8, block_size=4)
    written = set()
    for seq_id in range(5):
        sequence = make_sequence(seq_id)
        cache.grow(sequence, 5)
        written |= set(cache.table(sequence, 5))
        cache.release(sequence)
    assert len(written) == 2


def test_a_table_is_not_handed_out_beyond_what_is_held() -> None:
    cache = KVCache(num_blocks=4, block_size=4)
    sequence = make_sequence()
    cache.grow(sequence, 4)
    with pytest.raises(AssertionError, match="holds 1 blocks of the 2"):
        cache.table(sequence, 5)


class Damaged(KVCache):
    def lose(self) -> None:
        self._pool._free.pop()

    def free_twice(self) -> None:
        self._pool._free[0] = self._pool._free[1]

    def hold_unbooked(self) -> None:
        self._holdings[0].blocks += (self._pool._free.popleft(),)

    def hold_twice_unbooked(self) -> None:
        self._holdings[0].blocks += self._holdings[0].blocks[:1]


@pytest.mark.parametrize(
    "damage", [Damaged.lose, Damaged.free_twice, Damaged.hold_unbooked, Damaged.hold_twice_unbooked]
)
def test_the_integrity_check_finds(damage: Callable[[Damaged], None]) -> None:
    cache = Damaged(num_blocks=4, block_size=4)
    cache.grow(make_sequence(0), 4)
    cache.check_integrity()
    damage(cache)
    with pytest.raises(KVCacheCorrupted):
        cache.check_integrity()
