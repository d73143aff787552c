"""Requests that come together and begin alike: in the very step that computes the beginning, the others come onto its blocks."""

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import answer, make_engine, make_request, run_to_end, token_ids
from tests.server.engine.test_scheduler import Bench

SHARED = list(range(500, 512))  # three blocks of the bench's
OTHER = list(range(700, 710))


def together(*prompts: list[int], **fields: object) -> Bench:
    bench = Bench([], **fields)  # type: ignore[arg-type]
    for prompt in prompts:
        bench.add(make_request(prompt))
    return bench


def first_blocks(bench: Bench, count: int) -> set[tuple[int, ...]]:
    return {entry.block_table[:count] for entry in bench.last.sequences}


def test_those_that_begin_alike_compute_the_beginning_once() -> None:
    bench = together([*SHARED, 1, 2], [*SHARED, 3], [*SHARED, 4, 5, 6])
    assert bench.step() == {0: 14, 1: 1, 2: 3}
    assert len(first_blocks(bench, 3)) == 1
    assert bench.step() == {0: 1, 1: 1, 2: 1}


def test_one_token_is_left_to_compute() -> None:
    bench = together(SHARED, SHARED)
    assert bench.step() == {0: 12, 1: 4}
    assert len(first_blocks(bench, 2)) == 1


def test_one_that_shares_more_with_a_later_one_comes_onto_its_blocks() -> None:
    bench = together([*SHARED, 1], [*SHARED, *OTHER], [*SHARED, *OTHER[:8], 2])
    assert bench.step() == {0: 13, 1: 10, 2: 1}
    tables = {entry.seq_id: entry.block_table for entry in bench.last.sequences}
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert tables[1][:5] == tables[2][:5]


def test_what_the_step_does_not_reach_is_not_there_yet() -> None:
    bench = together([*SHARED, 1], [*SHARED, 2], budget=9, max_num_seqs=8)
    assert bench.steps(2) == [{0: 9}, {0: 4, 1: 1}]
    assert len(first_blocks(bench, 3)) == 1


def test_a_longer_beginning_in_the_cache_goes_before() -> None:
    bench = together([*SHARED, *OTHER, 1])
    bench.step()
    bench.cache.commit(bench.sequences[0])
    bench.add(make_request([*SHARED[:4], *OTHER]))
    bench.add(make_request([*SHARED, *OTHER[:4], 1]))
    assert bench.step() == {0: 1, 1: 10, 2: 1}


@pytest.mark.parametrize("options", [{"cache_salt": "mine"}, {"sampling": {"prompt_logprobs": 1}}])
def test_other_salts_and_whatever_asks_for_the_prompts_logprobs_compute_it_themselves(
    options: dict[str, object],
) -> None:
    engine, runner = make_engine(num_blocks=100)
    engine.add(make_request([*SHARED, 1]))
    engine.add(make_request([*SHARED, 2], **options))  # type: ignore[arg-type]
    engine.step()
    assert [len(entry.token_ids) for entry in runner.steps[0].sequences] == [13, 13]


def test_without_prefix_caching_each_computes_its_own() -> None:
    engine, runner = make_engine(num_blocks=100, prefix_caching=False)
    for last in (1, 2):
        engine.add(make_request([*SHARED, last]))
    engine.step()
    assert [len(entry.token_ids) for entry in runner.steps[0].sequences] == [13, 13]


class ShortestFirst(Policy):
    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.num_prompt_tokens,)


def test_one_whose_beginning_others_count_on_keeps_its_tokens() -> None:
    """A newcomer that goes first takes tokens only from those on whom nobody builds in this step."""
    bench = together([*SHARED, *range(22)], budget=20, policy=ShortestFirst(SchedulerConfig()))
    assert bench.step() == {0: 20}
    bench.add(make_request([*SHARED[:4], 1]))
    bench.add(make_request(OTHER))
    assert bench.step() == {0: 14, 1: 1, 2: 5}


def test_each_answers_as_it_would_alone_and_says_what_it_had_not_to_compute() -> None:
    engine, _ = make_engine(num_blocks=100)
    requests = [make_request([*SHARED, *range(last)], max_tokens=6) for last in range(1, 5)]
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        assert token_ids(outputs[request.request_id]) == answer(request.prompt_token_ids, 6)
    assert [outputs[request.request_id][0].num_cached_tokens for request in requests] == [0, 12, 12, 12]
    assert engine.stats().prefix_cache_hits == 36


def test_the_others_go_on_when_the_one_that_computed_it_is_gone_or_ran_away() -> None:
    for runs_away in (False, True):
        engine, runner = make_engine(num_blocks=100)
        first, second = (make_request([*SHARED, last], max_tokens=6) for last in (1, 2))
        engine.add(first)
        engine.add(second)
        if runs_away:
            runner.not_finite.add(0)
        outputs = engine.step()
        engine.abort(first.request_id)
        later = run_to_end(engine)[second.request_id]
        mine = [output for output in outputs if output.request_id == second.request_id] + later
        assert token_ids(mine) == answer(second.prompt_token_ids, 6)


def test_after_a_step_that_failed_nothing_of_it_is_found() -> None:
    engine, runner = make_engine(num_blocks=100)
    for last in (1, 2):
        engine.add(make_request([*SHARED, last]))
    runner.raise_next = RuntimeError("a bad batch")
    engine.step()
    assert engine.kv_cache.num_cached == 0
    request = make_request([*SHARED, 3])
    engine.add(request)
    assert token_ids(run_to_end(engine)[request.request_id]) == answer(request.prompt_token_ids, 4)
