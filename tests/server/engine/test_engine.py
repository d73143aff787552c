from dataclasses import replace

import pytest

from pagemill.failures import PagemillError
from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.errors import EngineDead, RequestTooLarge, UnknownTokenId
from pagemill_server.engine.request import FinishReason, RequestOutput
from pagemill_server.engine.step_model import StepShape
from tests.server.engine import hostile
from tests.server.engine.scripted import VOCAB, SlotRunner, answer, make_engine, make_request, run_to_end, token_ids


def test_one_request() -> None:
    engine, _ = make_engine()
    request = make_request(5, max_tokens=6)
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == answer(request.prompt_token_ids, 6)
    assert [output.finish_reason for output in outputs] == [None] * 5 + [FinishReason.LENGTH]
    assert {output.num_prompt_tokens for output in outputs} == {5}
    assert outputs[0].first_scheduled is not None
    assert {output.first_scheduled for output in outputs[1:]} == {None}


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 16, 100])
@pytest.mark.parametrize("num_blocks", [8, 11, 40])
def test_answers_do_not_depend_on_chunks_company_or_preemption(budget: int, num_blocks: int) -> None:
    engine, runner = make_engine(num_blocks=num_blocks, max_num_batched_tokens=budget)
    requests = [make_request(1 + 3 * i % 17, max_tokens=2 + 5 * i % 13) for i in range(16)]
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        assert token_ids(outputs[request.request_id]) == answer(request.prompt_token_ids, request.sampling.max_tokens)
    if num_blocks == 8 and budget > 16:
        assert engine.stats().num_preemptions > 0
    assert len(runner.steps) < 500


def test_a_stop_token_ends_the_answer_and_is_its_last_token() -> None:
    prompt = (1, 2, 3)
    expected = answer(prompt, 10)
    engine, _ = make_engine()
    request = make_request(prompt, max_tokens=10, stop_token_ids=(VOCAB + 5, expected[3]))
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == expected[:4]
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_the_last_allowed_token_may_be_a_stop_token() -> None:
    prompt = (1, 2, 3)
    engine, _ = make_engine()
    request = make_request(prompt, max_tokens=4, stop_token_ids=(answer(prompt, 4)[-1],))
    engine.add(request)
    assert run_to_end(engine)[request.request_id][-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("prompt", "max_model_len", "num_blocks", "tokens"),
    [
        pytest.param(5, 12, 100, 7, id="the model's length"),
        pytest.param(5, 1000, 3, 7, id="the whole cache"),
        pytest.param(11, 12, 100, 1, id="room for one token in the model's length"),
        pytest.param(11, 1000, 3, 1, id="room for one token in the cache"),
    ],
)
def test_who_outgrows_what_there_is_ends_with_length(
    prompt: int, max_model_len: int, num_blocks: int, tokens: int
) -> None:
    engine, _ = make_engine(num_blocks=num_blocks, max_model_len=max_model_len)
    request = make_request(prompt, max_tokens=1000)
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert token_ids(outputs) == answer(request.prompt_token_ids, tokens)
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_many_that_each_fill_the_cache_all_end() -> None:
    engine, _ = make_engine(num_blocks=4)
    requests = [make_request(3 + i, max_tokens=1000) for i in range(10)]
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        assert len(request.prompt_token_ids) + len(token_ids(outputs[request.request_id])) == 16


@pytest.mark.parametrize(
    ("prompt", "max_model_len", "num_blocks", "says"),
    [
        (12, 12, 100, r"12 tokens.*context length .* is 12 tokens"),
        (40, 12, 2, r"40 tokens.*KV cache is 8 tokens"),
        (12, 1000, 3, r"12 tokens.*KV cache is 12 tokens"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(prompt: int, max_model_len: int, num_blocks: int, says: str) -> None:
    engine, _ = make_engine(num_blocks=num_blocks, max_model_len=max_model_len)
    with pytest.raises(RequestTooLarge, match=says):
        engine.add(make_request(prompt))
    assert not engine.has_work


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_a_token_that_the_model_does_not_know_is_refused(token_id: int) -> None:
    engine, _ = make_engine()
    with pytest.raises(UnknownTokenId, match=f"{token_id} is outside"):
        engine.add(make_request((1, token_id, 2)))
    engine.add(make_request((0, VOCAB - 1)))


def test_a_request_id_in_use_is_a_mistake_of_the_program() -> None:
    engine, _ = make_engine()
    engine.add(make_request(3, request_id="same"))
    with pytest.raises(AssertionError, match="in use"):
        engine.add(make_request(3, request_id="same"))
    run_to_end(engine)
    engine.add(make_request(3, request_id="same"))


def test_an_unknown_policy_is_refused() -> None:
    limits, config = EngineLimits(100, VOCAB, 8, 4), SchedulerConfig(policy="lifo")
    with pytest.raises(PagemillError):
        Engine(SlotRunner(limits, config), limits, config)


@pytest.mark.parametrize("steps", [0, 1, 2, 5], ids=["waiting", "in its prompt", "in its prompt still", "decoding"])
def test_abort_frees_blocks_and_gauges_at_once(steps: int) -> None:
    engine, _ = make_engine(max_num_batched_tokens=4)
    request = make_request(10, max_tokens=20)
    engine.add(request)
    for _ in range(steps):
        engine.step()
    (output,) = engine.abort(request.request_id)
    assert output.finish_reason is FinishReason.ABORT
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage, stats.step_tokens) == (0, 0, 0.0, 0)
    assert engine.abort(request.request_id) == []
    assert engine.step() == []


def test_the_time_of_the_first_schedule_is_told_once() -> None:
    engine, _ = make_engine()
    for steps, told in [(0, 0), (1, 1), (2, 1)]:
        request = make_request(3, max_tokens=20)
        engine.add(request)
        outputs = [output for _ in range(steps) for output in engine.step()]
        outputs += engine.abort(request.request_id)
        assert sum(output.first_scheduled is not None for output in outputs) == told


def test_what_arrives_for_an_aborted_request_is_ignored() -> None:
    engine, runner = make_engine()
    gone, stays = make_request(3), make_request(3)
    engine.add(gone)
    engine.add(stays)
    plan = engine.scheduler.schedule(now=0.0)
    result = runner.run(plan)
    engine.abort(gone.request_id)
    assert [output.request_id for output in engine.commit(plan, result)] == [stays.request_id]
    outputs = run_to_end(engine)
    assert token_ids(outputs[stays.request_id]) == answer(stays.prompt_token_ids, 4)[1:]


def test_values_that_are_not_finite_end_their_own_request_only() -> None:
    engine, runner = make_engine()
    requests = [make_request(3), make_request(4), make_request(5)]
    for request in requests:
        engine.add(request)
    engine.step()
    runner.not_finite = {1}
    outputs = run_to_end(engine)
    (bad,) = outputs.pop(requests[1].request_id)
    assert bad.finish_reason is FinishReason.ERROR
    assert "not finite" in (bad.error or "")
    for request in (requests[0], requests[2]):
        assert token_ids(outputs[request.request_id]) == answer(request.prompt_token_ids, 4)[1:]


def test_values_that_are_not_finite_may_show_inside_a_prompt() -> None:
    engine, runner = make_engine(max_num_batched_tokens=2)
    request = make_request(6)
    engine.add(request)
    runner.not_finite = {0}
    (output,) = engine.step()
    assert output.finish_reason is FinishReason.ERROR
    assert not engine.has_work


def test_a_step_that_raises_ends_its_sequences_and_the_engine_goes_on() -> None:
    engine, runner = make_engine(max_num_seqs=2)
    requests = [make_request(3) for _ in range(3)]
    for request in requests:
        engine.add(request)
    runner.raise_next = RuntimeError("secret detail")
    failed = engine.step()
    assert {output.request_id for output in failed} == {request.request_id for request in requests[:2]}
    for output in failed:
        assert output.finish_reason is FinishReason.ERROR
        assert "secret" not in (output.error or "secret")
    assert engine.dead is None
    outputs = run_to_end(engine)
    assert token_ids(outputs[requests[2].request_id]) == answer(requests[2].prompt_token_ids, 4)


def test_two_steps_in_a_row_that_raise_are_the_end() -> None:
    engine, runner = make_engine(max_num_seqs=1)
    for _ in range(4):
        engine.add(make_request(3))
    runner.raise_next = RuntimeError("first")
    assert len(engine.step()) == 1
    runner.raise_next = RuntimeError("no device")
    outputs = engine.step()
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR] * 3
    assert engine.dead == "2 steps in a row failed, the last with RuntimeError: no device"
    assert not engine.has_work
    assert engine.kv_cache.num_held == 0
    with pytest.raises(EngineDead, match="no device"):
        engine.add(make_request(3))


def test_a_good_step_between_forgives() -> None:
    engine, runner = make_engine(max_num_seqs=1)
    for _ in range(3):
        runner.raise_next = RuntimeError()
        engine.add(make_request(3))
        engine.step()
        engine.add(make_request(3))
        run_to_end(engine)
    assert engine.dead is None


def test_a_request_without_a_seed_gets_one_that_the_engines_seed_determines() -> None:
    def seeds(engine_seed: int) -> list[int]:
        engine, runner = make_engine(seed=engine_seed)
        for seed in (None, 42, None):
            engine.add(make_request(1, seed=seed))
        engine.step()
        return [entry.seed for entry in runner.steps[0].sequences]

    first = seeds(0)
    assert first[1] == 42
    assert len(set(first)) == 3
    assert seeds(0) == first
    assert seeds(1)[0] != first[0]


def test_stats_count_what_happened() -> None:
    engine, _ = make_engine(num_blocks=6, max_num_batched_tokens=6)
    stats = engine.stats()
    assert (stats.num_blocks, stats.prompt_tokens, stats.generation_tokens, stats.step_tokens) == (6, 0, 0, 0)
    first, second = make_request(8, max_tokens=3), make_request(13, max_tokens=5)
    engine.add(first)
    engine.add(second)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.step_tokens) == (1, 1, 6)
    assert stats.kv_cache_usage == 0.5
    assert stats.prompt_tokens == 0, "a prompt counts when all of it is computed"
    run_to_end(engine)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert (stats.prompt_tokens, stats.generation_tokens) == (21, 8)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (21, 0)


def test_progress_is_a_step_that_computed_or_going_idle() -> None:
    now = 0.0
    limits, config = EngineLimits(100, VOCAB, 8, 4), SchedulerConfig()
    runner = SlotRunner(limits, config)
    engine = Engine(runner, limits, config, clock=lambda: now)
    engine.add(make_request(3, max_tokens=2, request_id="a"))
    now = 1.0
    engine.step()
    assert engine.stats().last_progress == 1.0
    now = 2.0
    engine.add(make_request(3, request_id="b"))
    engine.abort("b")
    assert engine.stats().last_progress == 1.0, "an abort beside running work is no progress"
    now = 3.0
    engine.abort("a")
    assert engine.stats().last_progress == 3.0


def test_a_preempted_prompt_is_counted_once() -> None:
    engine, _ = make_engine(num_blocks=4)
    requests = [make_request(6, max_tokens=10), make_request(6, max_tokens=10)]
    for request in requests:
        engine.add(request)
    run_to_end(engine)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert (stats.prompt_tokens, stats.generation_tokens) == (12, 20)


def test_every_step_teaches_the_step_model() -> None:
    now = 0.0

    def clock() -> float:
        return now

    def work() -> None:
        nonlocal now
        now += 0.25

    engine, runner = make_engine(clock=clock)
    runner.before = work
    engine.add(make_request(3, max_tokens=30))
    for _ in range(20):
        engine.step()
    assert engine.step_model.num_observed == 20
    assert engine.step_model.seconds(StepShape(1, 1, 10)) == pytest.approx(0.25, rel=0.05)


def test_a_newcomers_wait_is_estimated() -> None:
    engine, _ = make_engine(num_blocks=100, max_num_seqs=1)
    assert engine.stats().queue_seconds == 0.0
    for _ in range(3):
        engine.add(make_request(20))
    few = engine.stats()
    assert (few.num_waiting, few.waiting_tokens) == (3, 60)
    for _ in range(30):
        engine.add(make_request(20))
    assert engine.stats().queue_seconds > few.queue_seconds > 0
    run_to_end(engine)
    assert engine.stats().queue_seconds == 0.0


def test_a_change_of_settings_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine, runner = make_engine(num_blocks=100)
    requests = [make_request(5 + i, max_tokens=8, client=f"c{i % 3}") for i in range(12)]
    for request in requests:
        engine.add(request)
    outputs: list[RequestOutput] = []
    for config in (
        SchedulerConfig(policy="fair", max_num_batched_tokens=3),
        SchedulerConfig(policy="priority", max_num_seqs=2),
        SchedulerConfig(policy="deadline", max_num_batched_tokens=64),
    ):
        outputs += engine.step()
        engine.configure(config)
        runner.config = replace(config, max_num_seqs=12)
        engine.scheduler.check_integrity()
    for later in run_to_end(engine).values():
        outputs += later
    assert caplog.text == "", "no policy may be asked for what it hasn't heard of"
    for request in requests:
        mine = [output for output in outputs if output.request_id == request.request_id]
        assert token_ids(mine) == answer(request.prompt_token_ids, 8)


def test_the_stats_say_how_many_can_run_at_once_also_after_a_change() -> None:
    engine, _ = make_engine(max_num_seqs=3)
    assert engine.stats().places == 3
    engine.configure(SchedulerConfig(max_num_seqs=9, max_num_batched_tokens=2))
    assert engine.stats().places == 2


def test_a_policy_that_cannot_be_had_changes_nothing() -> None:
    engine, _ = make_engine(max_num_seqs=3)
    config, policy = engine.config, engine.scheduler.roster.policy
    with pytest.raises(PagemillError):
        engine.configure(SchedulerConfig(policy="nowhere:Nothing", max_num_seqs=1))
    assert engine.config is config
    assert engine.scheduler.roster.policy is policy


def test_a_policy_keeps_its_accounts_while_its_own_settings_stay() -> None:
    engine, _ = make_engine(policy="fair")
    policy = engine.scheduler.roster.policy
    engine.configure(replace(engine.config, max_num_seqs=2, max_num_queued_reqs=5))
    assert engine.scheduler.roster.policy is policy
    engine.configure(replace(engine.config, weights=(("a", 2.0),)))
    assert engine.scheduler.roster.policy is not policy


@pytest.mark.parametrize("name", hostile.NAMES)
@pytest.mark.parametrize("num_host_blocks", [0, 30])
def test_a_hostile_policy_loses_nothing(name: str, num_host_blocks: int) -> None:
    engine, _ = make_engine(
        num_blocks=9, num_host_blocks=num_host_blocks, policy=name, max_num_batched_tokens=12, max_num_seqs=4
    )
    requests = [make_request(1 + 5 * i % 19, max_tokens=2 + 7 * i % 13, sampling={"n": 1 + i % 3}) for i in range(14)]
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        for index in range(request.sampling.n):
            expected = answer(request.prompt_token_ids, request.sampling.max_tokens, index)
            assert token_ids(outputs[request.request_id], index) == expected
