"""n sequences of one request: one computes the prompt, the others come onto its blocks."""

from pagemill_server.engine.request import FinishReason
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import answer, make_engine, make_request, run_to_end, token_ids
from tests.server.engine.test_scheduler import Bench


def several(prompt: int, n: int = 3, **fields: object) -> Bench:
    bench = Bench([], **fields)  # type: ignore[arg-type]
    bench.add(make_request(prompt, sampling={"n": n}))
    return bench


def test_siblings_come_in_the_step_that_computes_the_prompt_and_compute_its_tail() -> None:
    bench = several(10)
    assert bench.step() == {0: 10, 1: 2, 2: 2}
    tables = [entry.block_table for entry in bench.last.sequences]
    assert {table[:2] for table in tables} == {tables[0][:2]}
    assert len({table[2] for table in tables}) == 3
    assert bench.step() == {0: 1, 1: 1, 2: 1}


def test_of_a_prompt_of_whole_blocks_the_last_is_computed_by_each() -> None:
    bench = several(8)
    assert bench.step() == {0: 8, 1: 4, 2: 4}
    assert {entry.block_table[0] for entry in bench.last.sequences} == {bench.last.sequences[0].block_table[0]}


def test_a_prompt_below_a_block_is_computed_by_each() -> None:
    assert several(3).step() == {0: 3, 1: 3, 2: 3}


def test_siblings_wait_until_the_prompt_is_computed_and_then_stand_where_they_came() -> None:
    bench = several(20, budget=9)
    bench.queue(12)
    assert bench.step() == {0: 9}
    assert bench.scheduler.roster.num_waiting == 3
    assert bench.step() == {0: 9}
    assert bench.step() == {0: 2, 1: 4, 2: 3}


def test_siblings_share_without_prefix_caching_and_whatever_asks_for_the_prompts_logprobs() -> None:
    for sampling in ({"n": 2}, {"n": 2, "prompt_logprobs": 1}):
        engine, runner = make_engine(prefix_caching=False, num_blocks=100)
        engine.add(make_request(40, sampling=sampling))
        engine.step()
        assert [len(entry.token_ids) for entry in runner.steps[0].sequences] == [40, 4]
        run_to_end(engine)


def test_a_sibling_whose_leader_runs_on_comes_onto_its_blocks_later() -> None:
    bench = several(10, max_num_seqs=2)
    assert bench.steps(2) == [{0: 10, 1: 2}, {0: 1, 1: 1}]
    bench.finish(1)
    assert bench.step() == {0: 1, 2: 2}
    assert bench.last.sequences[1].block_table[:2] == bench.last.sequences[0].block_table[:2]


def test_requests_that_wait_are_not_asked_about_those_held_back_behind_them() -> None:
    bench = several(10, max_num_seqs=1)
    for _ in range(50):
        bench.add(make_request(10, sampling={"n": 4}))
    asked: list[int] = []

    def has_prompt(sequence: Sequence) -> bool:
        asked.append(sequence.seq_id)
        return False

    bench.step()
    roster = bench.scheduler.roster
    assert roster.siblings.num_held == 50 * 3
    assert roster.siblings.due(roster.running.values(), has_prompt) == []
    assert len(asked) <= 1


def test_a_sibling_that_was_preempted_finds_what_it_had_itself() -> None:
    engine, _ = make_engine(num_blocks=100)
    engine.add(make_request(10, max_tokens=30, sampling={"n": 2}))
    for _ in range(12):
        engine.step()
    roster = engine.scheduler.roster
    sibling = roster.running[1]
    roster.preempt(sibling)
    engine.scheduler.schedule(now=0.0)
    assert sibling.num_computed_tokens == 20, "and not only the prompt's blocks, which its leader still has"


def test_when_the_leader_leaves_the_next_takes_its_place() -> None:
    bench = several(20, budget=9)
    bench.step()
    bench.finish(0)
    assert bench.step() == {1: 9}
    assert bench.step() == {1: 9}
    bench.finish(1)
    assert bench.steps(3)[-1] == {2: 2}
    assert bench.scheduler.roster.num_waiting == 0
    bench.finish(2)
    assert not bench.scheduler.roster.has_work
    assert bench.cache.num_held == 0


def test_one_that_is_held_back_may_leave() -> None:
    bench = several(20, n=4, budget=9)
    bench.step()
    bench.finish(2)
    bench.finish(2)
    assert bench.scheduler.roster.num_waiting == 2
    assert bench.steps(2)[-1] == {0: 2, 1: 4, 3: 3}


def test_a_leader_that_was_preempted_inside_its_prompt_is_still_waited_for() -> None:
    bench = Bench([4], num_blocks=8, budget=9)
    bench.add(make_request(20, sampling={"n": 2}))
    bench.steps(2)
    bench.scheduler.roster.preempt(bench.sequences[1])
    assert bench.scheduler.roster.siblings.num_held == 1
    bench.finish(0)
    assert bench.steps(3) == [{1: 9}, {1: 9}, {1: 2, 2: 4}]


def test_a_leader_whose_prompt_siblings_count_on_keeps_its_tokens() -> None:
    """A newcomer that goes first takes tokens only from those on whom nobody builds in this step."""
    engine, runner = make_engine(policy="priority", max_num_batched_tokens=24, num_blocks=100)
    engine.add(make_request(40, sampling={"n": 2}, priority=2))
    engine.step()
    engine.add(make_request(20))
    engine.step()
    assert [len(entry.token_ids) for entry in runner.steps[1].sequences] == [16, 8]


def test_each_answers_as_it_would_alone() -> None:
    engine, runner = make_engine(num_blocks=12, max_num_batched_tokens=7)
    requests = [make_request(10 + i, max_tokens=9, sampling={"n": 1 + i}) for i in range(4)]
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        for index in range(request.sampling.n):
            mine = [output for output in outputs[request.request_id] if output.index == index]
            assert token_ids(mine) == answer(request.prompt_token_ids, 9, index)
            assert [output.finish_reason for output in mine] == [None] * 8 + [FinishReason.LENGTH]
    seeds = {entry.seq_id: entry.seed for step in runner.steps for entry in step.sequences}
    assert len(set(seeds.values())) == 4, "one seed a request; the index tells its sequences apart"
    assert engine.stats().num_added == 10


def test_what_a_sibling_took_from_its_leader_counts_as_cached() -> None:
    engine, _ = make_engine(num_blocks=100)
    request = make_request(10, sampling={"n": 3})
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    cached = {output.index: output.num_cached_tokens for output in outputs}
    assert cached == {0: 0, 1: 8, 2: 8}
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (30, 16)


def test_aborting_one_leaves_the_others() -> None:
    for index in range(3):
        engine, _ = make_engine(num_blocks=100)
        request = make_request(10, max_tokens=5, sampling={"n": 3})
        engine.add(request)
        engine.step()
        (output,) = engine.abort(request.request_id, index)
        assert (output.index, output.finish_reason) == (index, FinishReason.ABORT)
        assert engine.abort(request.request_id, index) == []
        outputs = run_to_end(engine)[request.request_id]
        for other in {0, 1, 2} - {index}:
            assert token_ids(outputs, other) == answer(request.prompt_token_ids, 5, other)[1:]
        assert token_ids(outputs, index) == []
        assert engine.abort(request.request_id) == []


def test_aborting_the_request_ends_all_of_them() -> None:
    engine, _ = make_engine(num_blocks=100, max_num_batched_tokens=4)
    request = make_request(10, sampling={"n": 3})
    engine.add(request)
    engine.step()
    outputs = engine.abort(request.request_id)
    assert [(output.index, output.finish_reason) for output in outputs] == [(i, FinishReason.ABORT) for i in range(3)]
    assert not engine.has_work
    assert engine.kv_cache.num_held == 0
