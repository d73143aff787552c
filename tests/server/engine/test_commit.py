"""What a step's result becomes: outputs, progress, what may be shared, and what the policy is told."""

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import NOT_FINITE, Engine
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.request import FinishReason, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import answer, make_engine, make_request, next_token, run_to_end, token_ids


def prompt_tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token.token_id for output in outputs for token in output.prompt_logprobs]


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 8, 9, 100])
def test_prompt_logprobs_come_once_each_whatever_the_chunks(budget: int) -> None:
    engine, _ = make_engine(max_num_batched_tokens=budget)
    request = make_request(8, max_tokens=3, sampling={"prompt_logprobs": 1, "n": 2})
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert prompt_tokens([output for output in outputs if output.index == 0]) == list(request.prompt_token_ids[1:])
    assert prompt_tokens([output for output in outputs if output.index == 1]) == []
    assert token_ids(outputs, 0) == answer(request.prompt_token_ids, 3)
    for index in range(2):
        mine = [output for output in outputs if output.index == index]
        assert [output.first_scheduled is not None for output in mine] == [True] + [False] * (len(mine) - 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_preemption_repeats_no_prompt_logprob(steps: int) -> None:
    engine, runner = make_engine(max_num_batched_tokens=3)
    request = make_request(8, max_tokens=3, sampling={"prompt_logprobs": 1})
    engine.add(request)
    outputs = [output for _ in range(steps) for output in engine.step()]
    (sequence,) = engine.scheduler.roster.running.values()
    engine.scheduler.roster.preempt(sequence)
    engine.configure(SchedulerConfig(max_num_batched_tokens=5))  # so that the chunks are cut elsewhere
    runner.config = engine.config
    outputs += run_to_end(engine)[request.request_id]
    assert prompt_tokens(outputs) == list(request.prompt_token_ids[1:])
    positions = [-(token.logprob or 0) for output in outputs for token in output.prompt_logprobs]
    assert positions == list(range(1, 8))


def test_a_request_for_prompt_logprobs_reads_no_cache_and_fills_it() -> None:
    engine, _ = make_engine(num_blocks=20)
    prompt = range(10, 30)
    first, second = make_request(prompt), make_request(prompt, sampling={"prompt_logprobs": 0})
    third = make_request(prompt)
    cached = []
    for request in (second, first, second, third):
        engine.add(request)
        cached.append(run_to_end(engine)[request.request_id][0].num_cached_tokens)
    assert cached == [0, 16, 0, 16]


def test_pooling_ends_with_an_embedding_after_the_last_prompt_token() -> None:
    engine, _ = make_engine(max_num_batched_tokens=3, max_model_len=8, num_blocks=2)
    request = make_request(8, pooling=True)  # as long as may be, and as the pool: no token follows
    engine.add(request)
    outputs = run_to_end(engine)[request.request_id]
    assert len(outputs) == 1
    assert (outputs[0].finish_reason, outputs[0].tokens) == (FinishReason.STOP, ())
    assert outputs[0].embedding == (float(next_token(request.prompt_token_ids)),)
    assert engine.stats().prompt_tokens == 8
    assert engine.stats().generation_tokens == 0


def test_who_wants_no_token_ends_with_its_prompt() -> None:
    engine, _ = make_engine()
    request = make_request(6, max_tokens=0, sampling={"prompt_logprobs": 0})
    engine.add(request)
    (output,) = run_to_end(engine)[request.request_id]
    assert output.finish_reason is FinishReason.LENGTH
    assert prompt_tokens([output]) == list(request.prompt_token_ids[1:])


def test_a_prefix_is_shared_once_its_step_has_succeeded() -> None:
    engine, runner = make_engine(num_blocks=20)
    prompt = range(10, 30)
    engine.add(make_request(prompt))
    runner.raise_next = RuntimeError("told to")
    engine.step()
    engine.add(first := make_request(prompt))
    assert run_to_end(engine)[first.request_id][0].num_cached_tokens == 0
    engine.add(second := make_request(prompt))
    assert run_to_end(engine)[second.request_id][0].num_cached_tokens == 16


def test_what_ran_away_is_found_by_nobody() -> None:
    engine, runner = make_engine(num_blocks=20, max_num_batched_tokens=8)
    prompt = range(10, 30)
    engine.add(make_request(prompt))
    engine.step()
    engine.step()  # 16 tokens are there, and were good as far as anybody could see
    runner.not_finite = {0}
    run_to_end(engine)
    engine.add(again := make_request(prompt))
    assert run_to_end(engine)[again.request_id][0].num_cached_tokens == 0


def test_a_sequence_fails_for_the_reason_that_the_runner_gives() -> None:
    engine, runner = make_engine()
    for _ in range(3):
        engine.add(make_request(4))
    plan = engine.scheduler.schedule(now=0.0)
    result = runner.run(plan)
    sampled = {2: result.sampled[2]}
    outputs = engine.commit(plan, RunnerOutput(sampled, frozenset({0, 1}), errors={1: "Its grammar broke."}))
    assert [output.error for output in outputs] == [NOT_FINITE, "Its grammar broke.", None]


class Accountant(Policy):
    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.charged: list[tuple[int, int, int]] = []

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        self.charged.append((sequence.seq_id, prompt_tokens, output_tokens))


def with_accounts(engine: Engine) -> Accountant:
    policy = Accountant()
    engine.scheduler.configure(engine.config, policy)
    return policy


def test_prompt_tokens_are_charged_when_they_are_first_computed() -> None:
    engine, _ = make_engine(max_num_batched_tokens=4)
    policy = with_accounts(engine)
    engine.add(make_request(10, max_tokens=3))
    run_to_end(engine)
    assert policy.charged == [(0, 4, 0), (0, 4, 0), (0, 2, 1), (0, 0, 1), (0, 0, 1)]


def test_what_is_computed_again_is_not_charged_again() -> None:
    engine, _ = make_engine(max_num_batched_tokens=4, prefix_caching=False)
    policy = with_accounts(engine)
    engine.add(make_request(10, max_tokens=2))
    engine.step()
    engine.step()
    engine.scheduler.roster.preempt(engine.scheduler.roster.running[0])
    run_to_end(engine)
    assert policy.charged == [(0, 4, 0), (0, 4, 0), (0, 2, 1), (0, 0, 1)]


def test_what_was_cached_once_is_not_charged_when_it_is_computed_after_all() -> None:
    engine, _ = make_engine(num_blocks=20)
    engine.add(make_request(range(10, 27), max_tokens=1))
    run_to_end(engine)
    policy = with_accounts(engine)
    engine.add(make_request(range(10, 27), max_tokens=1))
    engine.scheduler.schedule(now=0.0)
    sequence = engine.scheduler.roster.running[1]
    assert sequence.num_computed_tokens == 16
    engine.kv_cache.forget(sequence)
    engine.scheduler.roster.preempt(sequence)
    run_to_end(engine)
    assert policy.charged == [(1, 1, 1)]


def test_what_was_cached_is_not_charged() -> None:
    engine, _ = make_engine(num_blocks=20)
    policy = with_accounts(engine)
    for _ in range(2):
        engine.add(make_request(range(10, 20), max_tokens=1))
        run_to_end(engine)
    engine.add(make_request(range(30, 40), max_tokens=1, sampling={"n": 2}))
    run_to_end(engine)
    assert policy.charged == [(0, 10, 1), (1, 2, 1), (2, 10, 1), (3, 2, 1)]
