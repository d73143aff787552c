"""What is evicted goes to the host tier and comes back from there, and no block is lost to a copy that nobody waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemill_server.engine.kv_cache import Admission, KVCache
from pagemill_server.engine.prefix import NO_MATCH
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.caching import BLOCK, admit, compute, make_sequence, run


def make_cache(num_blocks: int = 8, num_host_blocks: int = 8, *, prefix_caching: bool = True) -> KVCache:
    return KVCache(num_blocks, BLOCK, num_host_blocks=num_host_blocks, prefix_caching=prefix_caching)


def flood(cache: KVCache, first: int = 1000) -> tuple[BlockCopy, ...]:
    """Evict all that is cached; what is offloaded has arrived."""
    sequence = make_sequence([first + i for i in range(cache.available * BLOCK - 1)])
    assert cache.admit(sequence, sequence.num_tokens) is not None
    copies = cache.take_offloads()
    cache.release(sequence)
    cache.take_offloads()
    cache.check_integrity()
    return copies


def fetch(admission: Admission) -> Fetch:
    assert admission.fetch is not None
    return admission.fetch


def evicted(cache: KVCache, tokens: int = 13) -> Sequence:
    """A sequence whose full blocks are in the host tier."""
    sequence = make_sequence(tokens)
    run(cache, sequence)
    flood(cache)
    return sequence


def test_what_is_evicted_is_offloaded_last_block_first() -> None:
    cache = make_cache()
    sequence = make_sequence(13)
    admit(cache, sequence)
    compute(cache, sequence)
    blocks = cache.table(sequence, 12)
    cache.release(sequence)
    copies = flood(cache)
    assert [copy.source for copy in copies] == list(reversed(blocks))
    assert cache.num_offloaded == 3
    assert cache.num_host_used == 3


def test_a_match_goes_on_into_the_host_tier_from_the_next_step_on() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    admit(cache, make_sequence([*range(100, 115)]))
    copies = cache.take_offloads()
    assert len(copies) == 3
    assert cache.match(make_sequence(13)) == NO_MATCH
    assert cache.take_offloads() == ()
    match = cache.match(make_sequence(13))
    assert match.device == ()
    assert match.host == tuple(copy.target for copy in reversed(copies))


def test_a_match_finds_what_a_step_that_succeeded_has_offloaded_though_no_other_was_planned() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    admit(cache, make_sequence([*range(100, 115)]))
    cache.take_offloads()
    cache.confirm_offloads()
    assert len(cache.match(make_sequence(13)).host) == 3
    cache.take_offloads()
    cache.check_integrity()
    assert cache.num_offloaded == 3


def test_a_match_begins_on_the_device_and_continues_on_the_host() -> None:
    cache = make_cache(8)
    run(cache, make_sequence(17))
    run(cache, make_sequence([*range(100, 123)]))  # takes six of eight blocks, four are cached: two are evicted
    cache.take_offloads()
    cache.take_offloads()
    sequence = make_sequence(17)
    match = cache.match(sequence)
    assert (len(match.device), len(match.host)) == (2, 2)
    admission = admit(cache, sequence)
    assert admission.cached_tokens == 16
    table = cache.table(sequence, 17)
    assert fetch(admission).copies == tuple(map(BlockCopy, match.host, table[2:4]))
    assert table[:2] == match.device
    assert cache.fetched([fetch(admission).ticket]) == {sequence.seq_id}
    assert cache.num_fetched == 2
    compute(cache, sequence)


def test_what_was_fetched_is_found_on_the_device_once_it_is_there() -> None:
    cache = make_cache()
    evicted(cache)
    first, second = make_sequence(13), make_sequence(13)
    admission = admit(cache, first)
    assert cache.match(second).device == ()
    cache.fetched([fetch(admission).ticket])
    cache.check_integrity()
    assert cache.match(second).device == cache.table(first, 12)


def test_two_may_fetch_the_same_blocks() -> None:
    cache = make_cache()
    evicted(cache, 9)
    first, second = make_sequence(9), make_sequence(9)
    one, other = admit(cache, first), admit(cache, second)
    assert fetch(one).ticket != fetch(other).ticket
    assert cache.fetched([fetch(other).ticket, fetch(one).ticket]) == {first.seq_id, second.seq_id}
    cache.check_integrity()
    assert cache.match(make_sequence(9)).device == cache.table(second, 8)


def test_what_is_in_the_host_tier_is_not_offloaded_again() -> None:
    cache = make_cache()
    evicted(cache)
    sequence = make_sequence(13)
    cache.fetched([fetch(admit(cache, sequence)).ticket])
    cache.release(sequence)
    assert cache.num_cached == 3
    assert flood(cache, 2000) == ()
    assert len(cache.match(make_sequence(13)).host) == 3


def test_a_host_hit_need_not_be_taken() -> None:
    cache = make_cache()
    evicted(cache)
    sequence = make_sequence(13)
    admission = cache.admit(sequence, 14, replace(cache.match(sequence), host=()))
    assert admission == Admission(0)
    compute(cache, sequence)
    cache.release(sequence)
    assert len(cache.match(make_sequence(13)).device) == 3


@pytest.mark.parametrize("again", [True, False])
def test_blocks_of_a_sequence_that_goes_while_they_are_fetched_come_back_when_the_copy_is_done(again: bool) -> None:
    cache = make_cache()
    evicted(cache)
    sequence = make_sequence(13)
    ticket = fetch(admit(cache, sequence)).ticket
    cache.release(sequence)
    cache.check_integrity()
    assert (cache.num_parked, cache.num_held, cache.available) == (3, 0, 5)
    late = None
    if again:  # the same sequence, admitted anew: the old ticket says nothing about its new fetch
        late = fetch(admit(cache, sequence)).ticket
        assert late != ticket
    assert cache.fetched([ticket]) == frozenset()
    cache.check_integrity()
    assert cache.num_parked == 0
    if late is not None:
        assert cache.fetched([late]) == {sequence.seq_id}
        cache.release(sequence)
    cache.check_integrity()
    assert cache.available == 8


def test_a_sequence_that_goes_while_it_is_fetched_leaves_the_cached_blocks_in_order() -> None:
    """It had begun where another has gone on meanwhile: that one's blocks are used anew, each before the one it follows."""
    cache = make_cache(12)
    evicted(cache)
    sequence, other = make_sequence(13), make_sequence(13)
    ticket = fetch(admit(cache, sequence)).ticket
    cache.admit(other, 14)
    compute(cache, other)
    cache.release(other)
    cache.release(sequence)
    cache.check_order()
    cache.fetched([ticket])
    cache.check_order()


def test_tickets_that_nobody_knows_and_second_reports_are_ignored() -> None:
    cache = make_cache()
    evicted(cache)
    sequence = make_sequence(13)
    ticket = fetch(admit(cache, sequence)).ticket
    assert cache.fetched([ticket + 1, ticket + 7]) == frozenset()
    assert cache.fetched([ticket]) == {sequence.seq_id}
    assert cache.fetched([ticket]) == frozenset()
    cache.check_integrity()


def test_host_blocks_that_are_being_read_are_not_overwritten() -> None:
    cache = make_cache(8, num_host_blocks=3)
    evicted(cache)
    sequence = make_sequence(13)
    admission = admit(cache, sequence)
    run(cache, make_sequence([*range(100, 110)]))
    assert flood(cache, 2000) == (), "all three host blocks are being read"
    cache.fetched([fetch(admission).ticket])
    run(cache, make_sequence([*range(100, 110)]))
    assert len(flood(cache, 3000)) == 2


def test_a_failed_steps_offloads_are_forgotten() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    sequence = make_sequence([*range(100, 115)])
    admit(cache, sequence)
    cache.undo_offloads(cache.take_offloads())
    cache.check_integrity()
    cache.take_offloads()
    assert cache.match(make_sequence(13)) == NO_MATCH
    assert (cache.num_host_used, cache.num_offloaded) == (0, 0)


def test_a_sequence_that_is_being_fetched_leads_nobody() -> None:
    cache = make_cache()
    evicted(cache)
    leader = make_sequence(13)
    admission = admit(cache, leader)
    sibling = make_sequence(0, of=leader)
    assert cache.shared(leader, sibling) == NO_MATCH
    cache.fetched([fetch(admission).ticket])
    assert len(cache.shared(leader, sibling).device) == 3


def test_salts_do_not_share_in_the_host_tier_either() -> None:
    cache = make_cache()
    run(cache, make_sequence(13, salt="red"))
    flood(cache)
    assert cache.match(make_sequence(13)) == NO_MATCH
    assert cache.match(make_sequence(13, salt="blue")) == NO_MATCH
    assert len(cache.match(make_sequence(13, salt="red")).host) == 3


class TestWithoutPrefixCaching:
    """With a host tier a preempted sequence finds its own blocks; requests share nothing, and leave nothing behind."""

    def preempted(self, cache: KVCache) -> Sequence:
        sequence = make_sequence(13)
        admit(cache, sequence)
        compute(cache, sequence)
        cache.release(sequence, returns=True)
        return sequence

    def test_a_preempted_sequence_finds_its_own_blocks_on_either_tier(self) -> None:
        cache = make_cache(prefix_caching=False)
        sequence = self.preempted(cache)
        assert len(cache.match(sequence).device) == 3
        flood(cache)
        assert len(cache.match(sequence).host) == 3

    def test_nobody_else_finds_them(self) -> None:
        cache = make_cache(prefix_caching=False)
        self.preempted(cache)
        assert cache.match(make_sequence(13)) == NO_MATCH
        flood(cache)
        assert cache.match(make_sequence(13)) == NO_MATCH

    def test_a_finished_request_leaves_nothing(self) -> None:
        cache = make_cache(prefix_caching=False)
        sequence = self.preempted(cache)
        flood(cache)
        cache.fetched([fetch(admit(cache, sequence)).ticket])
        compute(cache, sequence)
        cache.release(sequence)
        cache.check_integrity()
        assert (cache.num_cached, cache.num_host_used) == (0, 0)

    def test_a_preempted_one_that_is_aborted_while_it_waits_leaves_nothing(self) -> None:
        cache = make_cache(prefix_caching=False)
        sequence = self.preempted(cache)
        cache.release(sequence)
        assert cache.num_free == 8
        cache.check_integrity()
