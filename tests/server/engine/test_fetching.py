"""What comes from the host tier: begun at admission, waited for beside the steps, and right whatever happens meanwhile."""

from typing import Any

import pytest

from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, FinishReason
from pagemill_server.engine.tier_costs import FixedCosts
from tests.server.engine.scripted import SlotRunner, answer, make_engine, make_request, run_to_end, token_ids

PROMPT = tuple(range(100, 117))  # four blocks and a token


def after_eviction(**options: Any) -> tuple[Engine, SlotRunner]:
    """An engine that has answered PROMPT, and something else since that took all device blocks."""
    options = {"num_blocks": 8, "num_host_blocks": 20} | options
    engine, runner = make_engine(**options)
    for prompt in (PROMPT, range(500, 530)):
        engine.add(make_request(prompt, max_tokens=1))
        run_to_end(engine)
    runner.steps.clear()
    return engine, runner


def again(max_tokens: int = 4, **fields: Any) -> AddRequest:
    return make_request(PROMPT, max_tokens, **fields)


def test_a_hit_in_the_host_tier_is_fetched_and_only_the_rest_is_computed() -> None:
    engine, runner = after_eviction()
    request = again()
    engine.add(request)
    assert engine.step() == []
    (fetch,) = runner.steps[0].fetches
    assert (len(fetch.copies), runner.steps[0].sequences) == (4, ())
    assert engine.stats().num_running == 1
    assert engine.stats().kv_cache_usage > 0
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == answer(PROMPT, 4)
    assert [len(step.sequences[0].token_ids) for step in runner.steps if step.sequences] == [1] * 4
    assert outputs[0].num_cached_tokens == 16
    stats = engine.stats()
    assert (stats.host_hits, stats.fetched_blocks, stats.prefix_cache_hits) == (16, 4, 16)
    assert stats.offloaded_blocks >= 4


def test_others_run_while_it_is_fetched() -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 3
    other, request = make_request(3, max_tokens=8), again()
    engine.add(other)
    engine.add(request)
    computed = []
    for _ in range(5):
        engine.step()
        computed.append({entry.seq_id: len(entry.token_ids) for entry in runner.steps[-1].sequences})
    assert [sorted(step.values()) for step in computed] == [[3], [1], [1], [1], [1, 1]]
    outputs = run_to_end(engine)
    assert token_ids(outputs[request.request_id]) == answer(PROMPT, 4)[1:]


def test_siblings_of_one_that_is_fetched_hold_nobody_up() -> None:
    engine, runner = after_eviction(num_blocks=16)
    for other in range(2):  # what evicts PROMPT from the larger pool too
        engine.add(make_request(range(200 + 100 * other, 230 + 100 * other), max_tokens=1))
    run_to_end(engine)
    runner.fetch_steps = lambda: 2
    runner.steps.clear()
    request, other_request = again(sampling={"n": 2}), make_request(3)
    engine.add(request)
    engine.add(other_request)
    outputs = run_to_end(engine)
    computed = [[len(entry.token_ids) for entry in step.sequences] for step in runner.steps[:4]]
    assert computed == [[3], [1], [1], [1, 1, 1]], "the other's, then the leader's and its sibling's last prompt token"
    for index in range(2):
        assert token_ids(outputs[request.request_id], index) == answer(PROMPT, 4, index)


def test_a_fetch_may_begin_although_the_budget_is_used_up() -> None:
    engine, runner = after_eviction(num_blocks=20, num_host_blocks=20, max_num_batched_tokens=4)
    for prompt in range(3):  # so that PROMPT is evicted from the larger pool as well
        engine.add(make_request(range(200 + 100 * prompt, 230 + 100 * prompt), max_tokens=1))
    run_to_end(engine)
    runner.steps.clear()
    engine.add(make_request(40, max_tokens=1))
    engine.add(again())
    engine.step()
    assert [len(entry.token_ids) for entry in runner.steps[0].sequences] == [4]
    assert len(runner.steps[0].fetches) == 1


def test_what_does_not_pay_is_computed_again() -> None:
    engine, runner = after_eviction(costs=FixedCosts(fetch=False))
    request = again()
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == answer(PROMPT, 4)
    assert outputs[0].num_cached_tokens == 0
    assert all(step.fetches == () for step in runner.steps)


@pytest.mark.parametrize("index", [None, 0])
def test_one_that_leaves_while_it_is_fetched_frees_its_blocks_when_the_fetch_ends(index: int | None) -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 5
    request, other = again(), make_request(1)
    engine.add(other)
    engine.add(request)
    engine.step()
    (output,) = engine.abort(request.request_id, index)
    assert output.finish_reason is FinishReason.ABORT
    assert (engine.kv_cache.num_held, engine.kv_cache.num_parked) == (1, 4)
    assert not engine.scheduler.roster.fetching
    engine.abort(other.request_id)
    engine.scheduler.check_integrity()
    assert engine.has_work, "somebody must take the blocks back"
    assert engine.step() == []
    assert not engine.has_work
    assert engine.kv_cache.num_parked == 0


def test_one_that_needs_the_whole_pool_waits_for_the_fetch_of_one_that_left() -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 5
    request, large = again(), make_request(30)
    engine.add(request)
    engine.step()
    engine.abort(request.request_id)
    engine.add(large)
    outputs = run_to_end(engine)
    assert token_ids(outputs[large.request_id]) == answer(large.prompt_token_ids, 2)


def test_one_that_is_fetched_is_no_victim() -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 100
    growing, request = make_request(4, max_tokens=20), again()
    engine.add(growing)
    engine.step()
    engine.add(request)
    while not engine.stats().num_preemptions:
        engine.step()
    (waiting,) = engine.scheduler.roster.waiting.members()
    assert waiting.request is growing, "for want of another it gives way itself, though the other was admitted last"
    outputs = run_to_end(engine)
    assert token_ids(outputs[request.request_id]) == answer(PROMPT, 4)


def test_a_preempted_one_gets_its_own_blocks_back_from_the_host() -> None:
    for prefix_caching in (True, False):
        engine, _ = make_engine(num_blocks=8, num_host_blocks=20, prefix_caching=prefix_caching)
        requests = [make_request(9, max_tokens=14) for _ in range(2)]
        for request in requests:
            engine.add(request)
        outputs = run_to_end(engine)
        for request in requests:
            assert token_ids(outputs[request.request_id]) == answer(request.prompt_token_ids, 14)
        assert engine.stats().num_preemptions > 0
        assert engine.stats().fetched_blocks > 0
        assert engine.stats().host_hits == 0, "only what a request finds when it first runs is a hit"


def test_a_step_that_raises_ends_what_is_being_fetched_too() -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 2
    request, other = again(), make_request(3, max_tokens=20)
    engine.add(other)
    engine.add(request)
    engine.step()
    runner.raise_next = RuntimeError("told to")
    failed = engine.step()
    assert {output.request_id for output in failed} == {request.request_id, other.request_id}
    assert {output.finish_reason for output in failed} == {FinishReason.ERROR}
    engine.scheduler.check_integrity()
    engine.add(late := again())
    outputs = run_to_end(engine)
    assert token_ids(outputs[late.request_id]) == answer(PROMPT, 4)
    assert engine.kv_cache.num_parked == 0


def test_what_a_failed_step_should_have_offloaded_is_not_fetched_later() -> None:
    engine, runner = make_engine(num_blocks=8, num_host_blocks=20)
    engine.add(make_request(PROMPT, max_tokens=1))
    run_to_end(engine)
    engine.add(make_request(30, max_tokens=1))
    runner.raise_next = RuntimeError("told to")
    engine.step()
    assert len(runner.steps[-1].offloads) > 0
    engine.add(make_request(1))
    run_to_end(engine)
    engine.add(request := again())
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == answer(PROMPT, 4)
    assert outputs[0].num_cached_tokens == 0


def test_a_fetch_that_ends_is_progress() -> None:
    now = 0.0
    engine, runner = after_eviction(clock=lambda: now)
    runner.fetch_steps = lambda: 0
    engine.add(again())
    now = 5.0
    engine.step()
    assert engine.stats().last_progress == 5.0


def test_no_more_are_fetched_than_could_run_at_once() -> None:
    engine, runner = make_engine(num_blocks=12, num_host_blocks=40, max_num_batched_tokens=2)
    prompts = [range(100 * i, 100 * i + 5) for i in range(1, 4)]
    for prompt in (*prompts, range(500, 545)):
        engine.add(make_request(prompt, max_tokens=1))
        run_to_end(engine)
    runner.fetch_steps = lambda: 3
    runner.steps.clear()
    for prompt in prompts:
        engine.add(make_request(prompt, max_tokens=1))
    engine.step()
    assert [len(step.fetches) for step in runner.steps] == [2]
    run_to_end(engine)
    assert engine.stats().num_preemptions == 0


def test_an_engine_that_died_while_it_fetched_has_no_work() -> None:
    engine, runner = after_eviction()
    runner.fetch_steps = lambda: 9
    for _ in range(2):
        engine.add(make_request(3))
        engine.add(again())
        runner.raise_next = RuntimeError("told to")
        engine.step()
    assert engine.dead is not None
    assert engine.scheduler.roster.in_flight
    assert not engine.has_work


class Observing(FixedCosts):
    def __init__(self) -> None:
        super().__init__(fetch=True)
        self.observed: list[tuple[int, float]] = []

    def observe(self, num_blocks: int, seconds: float) -> None:
        self.observed.append((num_blocks, seconds))


def test_what_a_fetch_took_is_told_to_who_weighs_it() -> None:
    costs = Observing()
    engine, runner = after_eviction(costs=costs)
    runner.seconds_a_block = 0.25
    engine.add(again())
    run_to_end(engine)
    assert costs.observed == [(4, 1.0)]
