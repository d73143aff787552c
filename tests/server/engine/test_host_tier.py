"""The host tier's books: what may be read, what may be overwritten, and in which order content goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pagemill_server.engine.errors import KVCacheCorrupted
from pagemill_server.engine.host_tier import HostTier


def filled(*contents: bytes, num_blocks: int = 3) -> HostTier:
    tier = HostTier(num_blocks)
    for content in contents:
        block = tier.offer(content)
        assert block is not None
        tier.arrived([block])
    return tier


def present(tier: HostTier, contents: bytes) -> bytes:
    tier.check_integrity(tier._pins)
    return bytes(content for content in contents if tier.find(bytes([content])) is not None)


def test_content_may_be_read_once_it_has_arrived() -> None:
    tier = HostTier(2)
    block = tier.offer(b"a")
    assert block is not None
    assert tier.find(b"a") is None
    assert tier.offer(b"a") is None, "it is on its way already"
    tier.arrived([block])
    assert tier.find(b"a") == block
    assert tier.num_used == 1


def test_what_failed_to_arrive_is_forgotten() -> None:
    tier = HostTier(1)
    block = tier.offer(b"a")
    assert block is not None
    tier.undo([block])
    assert tier.num_used == 0
    assert tier.offer(b"a") == block


def test_the_least_recently_used_goes() -> None:
    tier = filled(b"a", b"b", b"c")
    assert tier.offer(b"a") is None  # touched: it was on the device until now
    tier.offer(b"d")
    assert present(tier, b"abcd") == b"ac"
    tier.offer(b"e")
    assert present(tier, b"abcde") == b"a"


def test_what_is_being_read_or_arriving_stays() -> None:
    tier = filled(b"a", b"b")
    reading = tier.find(b"a")
    assert reading is not None
    tier.pin(reading)
    tier.pin(reading)
    taken = {tier.offer(b"c"), tier.offer(b"d")}
    assert reading not in taken
    assert tier.offer(b"e") is None, "one is read, two arrive: there is no room"
    tier.unpin(reading)
    assert tier.offer(b"e") is None
    tier.unpin(reading)
    assert tier.offer(b"e") == reading
    tier.check_integrity(Counter())


def test_forgotten_content_is_found_by_nobody_and_its_block_waits_for_who_uses_it() -> None:
    tier = filled(b"a", b"b")
    reading = tier.find(b"a")
    assert reading is not None
    tier.pin(reading)
    arriving = tier.offer(b"c")
    assert arriving is not None
    for content in (b"a", b"b", b"c", b"unknown"):
        tier.forget(content)
    assert tier.num_used == 2
    tier.check_integrity(Counter({reading: 1}))
    tier.unpin(reading)
    tier.arrived([arriving])
    assert tier.num_used == 0
    tier.check_integrity(Counter())


def test_no_tier_takes_nothing() -> None:
    tier = HostTier(0)
    assert tier.offer(b"a") is None
    assert tier.find(b"a") is None
    tier.check_integrity(Counter())


def lose(tier: HostTier) -> None:
    tier._free.clear()


def free_twice(tier: HostTier) -> None:
    tier._free.append(next(iter(tier._idle)))


def misname(tier: HostTier) -> None:
    tier._by_hash[b"a"] = 2


def pin_unasked(tier: HostTier) -> None:
    tier.pin(0)


@pytest.mark.parametrize("damage", [lose, free_twice, misname, pin_unasked])
def test_the_integrity_check_finds(damage: Callable[[HostTier], None]) -> None:
    tier = filled(b"a", b"b")
    tier.check_integrity(Counter())
    damage(tier)
    with pytest.raises(KVCacheCorrupted):
        tier.check_integrity(Counter())
