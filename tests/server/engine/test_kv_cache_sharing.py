"""Sequences share full blocks of equal tokens after an equal beginning, and nothing else; what nobody holds is kept a while."""

from __future__ import annotations

import pytest

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.prefix import NO_MATCH
from tests.server.engine.caching import BLOCK, admit, compute, make_sequence, run


def make_cache(num_blocks: int = 16, *, prefix_caching: bool = True) -> KVCache:
    return KVCache(num_blocks, BLOCK, prefix_caching=prefix_caching)


@pytest.mark.parametrize(
    ("prompt", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12)]
)
def test_an_equal_prompt_finds_its_full_blocks_but_computes_a_token_at_least(prompt: int, cached: int) -> None:
    cache = make_cache()
    assert run(cache, make_sequence(prompt)) == 0
    assert run(cache, make_sequence(prompt)) == cached


def test_shared_blocks_are_the_same_blocks_and_count_once() -> None:
    cache = make_cache()
    first, second = make_sequence(13), make_sequence([*range(8), 99, 98, 97, 96, 95])
    admit(cache, first)
    compute(cache, first)
    assert admit(cache, second).cached_tokens == 8
    assert cache.table(second, 8) == cache.table(first, 8)
    assert not set(cache.table(second, 13)[2:]) & set(cache.table(first, 13))
    assert (cache.num_held, cache.num_free) == (6, 10)
    cache.release(first)
    assert (cache.num_held, cache.num_cached) == (4, 1)
    cache.release(second)
    assert (cache.num_held, cache.num_cached, cache.num_free) == (0, 3, 13)
    cache.check_integrity()


def test_a_longer_prompt_and_an_answer_are_found_too() -> None:
    cache = make_cache()
    first = make_sequence(6)
    admit(cache, first)
    first.token_ids += [50, 51, 52, 53]  # sampled
    assert cache.grow(first, 11)
    compute(cache, first)
    cache.release(first)
    assert run(cache, make_sequence([*first.token_ids, 60, 61])) == 8


def test_only_what_a_successful_step_computed_is_found() -> None:
    cache = make_cache()
    first = make_sequence(13)
    admit(cache, first)
    assert cache.match(make_sequence(13)) == NO_MATCH
    first.num_computed_tokens = 7  # a chunk
    cache.commit(first)
    assert len(cache.match(make_sequence(13)).device) == 1
    first.num_computed_tokens = 13  # a step that failed: no commit
    cache.release(first)
    assert run(cache, make_sequence(13)) == 4


def test_salts_never_share_and_equal_salts_do() -> None:
    cache = make_cache()
    run(cache, make_sequence(13))
    run(cache, make_sequence(13, salt="red"))
    assert run(cache, make_sequence(13, salt="blue")) == 0
    assert run(cache, make_sequence(13, salt="red")) == 12
    assert run(cache, make_sequence(13)) == 12


def test_prompt_logprobs_are_computed_but_feed_the_cache() -> None:
    cache = make_cache()
    assert run(cache, make_sequence(13, prompt_logprobs=1)) == 0
    assert run(cache, make_sequence(13, prompt_logprobs=0)) == 0
    assert run(cache, make_sequence(13)) == 12


def test_without_prefix_caching_nothing_is_found_or_kept_or_hashed() -> None:
    cache = make_cache(prefix_caching=False)
    first = make_sequence(13)
    admit(cache, first)
    compute(cache, first)
    cache.release(first, returns=True)
    assert first.block_hashes == []
    assert (cache.num_cached, cache.num_free) == (0, 16)
    assert run(cache, make_sequence(13)) == 0


def test_a_preempted_sequence_finds_what_it_had() -> None:
    cache = make_cache()
    sequence = make_sequence(13)
    admit(cache, sequence)
    compute(cache, sequence)
    cache.release(sequence, returns=True)
    assert admit(cache, sequence).cached_tokens == 12


def test_the_least_recently_used_is_evicted_and_a_chain_from_its_end() -> None:
    cache = make_cache(8)
    run(cache, make_sequence(13))  # three full blocks
    run(cache, make_sequence([*range(100, 113)]))
    assert (cache.num_cached, cache.num_free) == (6, 2)
    run(cache, make_sequence([*range(200, 212)]))  # four blocks, three of them full: two are evicted
    assert len(cache.match(make_sequence(13)).device) == 1
    run(cache, make_sequence(5))  # used again
    run(cache, make_sequence([*range(300, 316)]))
    assert len(cache.match(make_sequence(13)).device) == 1
    assert len(cache.match(make_sequence([*range(100, 113)])).device) == 0


def test_a_block_that_is_used_anew_is_not_found_by_what_it_held() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    run(cache, make_sequence([*range(100, 112)]))
    assert cache.match(make_sequence(13)) == NO_MATCH


def test_an_admission_does_not_evict_what_it_matched() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    longer = make_sequence([*range(8), *range(50, 57)])
    admit(cache, longer)
    compute(cache, longer)
    assert len(set(cache.table(longer, 16))) == 4


def test_an_admission_is_all_or_nothing() -> None:
    cache = make_cache(6)
    run(cache, make_sequence(9))  # two blocks cached
    other = make_sequence([*range(100, 104)])
    admit(cache, other)  # two blocks held
    sequence = make_sequence(18)
    match = cache.match(sequence)
    assert cache.blocks_to_admit(19, match) == 5
    assert cache.available == 4
    assert cache.admit(sequence, 19, match) is None
    cache.check_integrity()
    assert cache.holders == {other.seq_id}
    assert cache.match(sequence) == match
    cache.release(other)
    assert admit(cache, sequence).cached_tokens == 8


def test_what_somebody_holds_costs_an_admission_nothing() -> None:
    cache = make_cache(8)
    first, second = make_sequence(13), make_sequence(13)
    admit(cache, first)
    compute(cache, first)
    match = cache.match(second)
    assert cache.blocks_to_admit(14, match) == 1
    cache.release(first)
    assert cache.blocks_to_admit(14, match) == 4


def test_equal_blocks_computed_beside_each_other_are_found_once_and_survive_either() -> None:
    for first_leaves in (True, False):
        cache = make_cache()
        pair = [make_sequence(13), make_sequence(13)]
        for sequence in pair:
            admit(cache, sequence)
        for sequence in pair:
            compute(cache, sequence)
        early, late = pair if first_leaves else reversed(pair)
        cache.release(early)
        cache.check_integrity()
        cache.release(late)
        cache.check_integrity()
        assert (cache.num_cached, cache.num_free) == (3, 13)
        assert run(cache, make_sequence(13)) == 12


def test_a_copy_takes_the_name_of_the_block_that_was_evicted() -> None:
    cache = make_cache(9)
    first, second = make_sequence(13), make_sequence(13)
    admit(cache, first)
    admit(cache, second)
    compute(cache, first)
    compute(cache, second)
    cache.release(first)
    run(cache, make_sequence([*range(100, 116)]))  # evicts the first's blocks; the second holds its copies
    assert cache.match(make_sequence(13)) == NO_MATCH
    cache.release(second)
    cache.check_integrity()
    assert run(cache, make_sequence(13)) == 12


def test_a_match_from_before_blocks_changed_hands_is_refused() -> None:
    cache = make_cache(4)
    run(cache, make_sequence(13))
    sequence = make_sequence(13)
    match = cache.match(sequence)
    run(cache, make_sequence([*range(100, 112)]))
    with pytest.raises(AssertionError, match="out of date"):
        cache.admit(sequence, 14, match)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("prompt", "shared"), [(3, 0), (4, 0), (5, 1), (12, 2), (13, 3)])
def test_the_sequences_of_a_request_share_its_prompt(prompt: int, shared: int, prefix_caching: bool) -> None:
    """In the step that computes it already, and whatever caching is allowed."""
    cache = make_cache(prefix_caching=prefix_caching)
    leader = make_sequence(prompt, salt="red", prompt_logprobs=1)
    sibling = make_sequence(0, of=leader)
    admit(cache, leader)
    match = cache.shared(leader, sibling)
    assert match.device == cache.table(leader, prompt)[:shared]
    admission = cache.admit(sibling, prompt + 1, match)
    assert admission is not None
    assert admission.cached_tokens == shared * BLOCK
    assert cache.num_held == 2 * cache.blocks_for(prompt + 1) - shared
    compute(cache, leader)
    compute(cache, sibling)
    cache.release(leader)
    assert cache.table(sibling, prompt)[:shared] == match.device
    cache.check_integrity()
    cache.release(sibling)
    cache.check_integrity()
    assert cache.num_held == 0


def test_what_a_leader_had_not_computed_when_the_step_failed_is_not_found() -> None:
    cache = make_cache()
    leader = make_sequence(13)
    sibling = make_sequence(0, of=leader)
    admit(cache, leader)
    cache.admit(sibling, 14, cache.shared(leader, sibling))
    cache.release(leader)
    cache.release(sibling)
    cache.check_integrity()
    assert (cache.num_cached, cache.num_free) == (0, 16)


def test_a_match_of_a_leader_that_has_gone_is_refused() -> None:
    cache = make_cache()
    leader = make_sequence(13)
    sibling = make_sequence(0, of=leader)
    admit(cache, leader)
    match = cache.shared(leader, sibling)
    cache.release(leader)
    admit(cache, make_sequence(5))  # has some of what was the leader's
    admit(cache, leader)
    with pytest.raises(AssertionError, match="isn't what"):
        cache.admit(sibling, 14, match)


def test_a_sequence_whose_numbers_ran_away_leaves_nothing_to_find() -> None:
    cache = make_cache()
    run(cache, make_sequence(5))
    sequence, other = make_sequence(13), make_sequence(9)
    admit(cache, sequence)
    compute(cache, sequence)
    admit(cache, other)
    cache.forget(sequence)
    cache.check_integrity()
    assert cache.match(make_sequence(13)) == NO_MATCH
    cache.release(sequence)
    assert cache.table(other, 9)[:2] == cache.table(other, 8)
    assert cache.num_cached == 0
    cache.check_integrity()
