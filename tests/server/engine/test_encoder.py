"""The engine of encoders: whole texts, in the policy's order, each within its step; nothing lost, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.failures import PagemillError
from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.encoder import EncoderEngine
from pagemill_server.engine.errors import EmbedsOnly, EngineDead, TextTooLong, UnknownTokenId
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput, SamplingParams
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput

LIMITS = EngineLimits(max_model_len=20, vocab_size=100, num_blocks=0, block_size=1)
CONFIG = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16)


def vector(token_ids: Sequence[int]) -> tuple[float, ...]:
    return (float(len(token_ids)), float(sum(token_ids)))


class SumRunner:
    """A runner without a model; remembers its steps, and fails when told to."""

    def __init__(self) -> None:
        self.steps: list[SchedulerOutput] = []
        self.raise_next: list[Exception] = []
        self.not_finite: set[int] = set()

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self.steps.append(output)
        if self.raise_next:
            raise self.raise_next.pop()
        vectors = {entry.seq_id: vector(entry.token_ids) for entry in output.sequences}
        good = {seq_id: made for seq_id, made in vectors.items() if seq_id not in self.not_finite}
        return RunnerOutput({}, frozenset(vectors.keys() - good.keys()), embeddings=good)


@pytest.fixture
def runner() -> SumRunner:
    return SumRunner()


@pytest.fixture
def engine(runner: SumRunner) -> EncoderEngine:
    return EncoderEngine(runner, LIMITS, CONFIG, clock=lambda: 0.0)


def request(name: str, length: int, **more: object) -> AddRequest:
    made = AddRequest(name, tuple(range(1, length + 1)), SamplingParams(), arrival=float(len(name)), pooling=True)
    return replace(made, **more)  # type: ignore[arg-type]


def run(engine: EncoderEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def test_each_text_gets_its_own_vector(engine: EncoderEngine, runner: SumRunner) -> None:
    requests = [request("a" * place, place) for place in range(1, 9)]
    for each in requests:
        engine.add(each)
    outputs = {output.request_id: output for output in run(engine)}
    for each in requests:
        output = outputs[each.request_id]
        assert output.embedding == vector(each.prompt_token_ids)
        assert (output.finish_reason, output.tokens) == (FinishReason.STOP, ())
        assert (output.num_prompt_tokens, output.first_scheduled) == (len(each.prompt_token_ids), 0.0)
    assert [len(step.sequences) for step in runner.steps] == [3, 3, 2]  # max_num_seqs
    assert all(step.num_tokens <= 16 for step in runner.steps)
    stats = engine.stats()
    assert (stats.num_added, stats.prompt_tokens, stats.num_waiting) == (8, 36, 0)


def test_a_step_holds_whole_texts_and_a_long_one_goes_alone(engine: EncoderEngine, runner: SumRunner) -> None:
    for place, length in enumerate((10, 6, 1, 20, 5, 5)):
        engine.add(request("a" * (place + 1), length))
    run(engine)
    assert [[len(entry.token_ids) for entry in step.sequences] for step in runner.steps] == [[10, 6], [1], [20], [5, 5]]
    assert all(
        entry.pooling and entry.start == 0 and not entry.block_table for s in runner.steps for entry in s.sequences
    )


def test_the_policy_decides_the_order_also_of_those_that_wait_when_it_changes(runner: SumRunner) -> None:
    engine = EncoderEngine(runner, LIMITS, replace(CONFIG, max_num_seqs=1), clock=lambda: 0.0)
    for place, priority in enumerate((5, 0, 3)):
        engine.add(request("a" * (place + 1), place + 1, priority=priority))
    engine.configure(replace(CONFIG, max_num_seqs=1, policy="priority"))
    assert [output.request_id for output in run(engine)] == ["aa", "aaa", "a"]


def test_the_stats_say_how_many_texts_a_step_may_hold(engine: EncoderEngine) -> None:
    engine.configure(SchedulerConfig(max_num_seqs=5, max_num_batched_tokens=64))
    assert engine.stats().places == 5


def test_a_policy_that_is_none_changes_nothing(engine: EncoderEngine) -> None:
    engine.add(request("a", 3))
    with pytest.raises(PagemillError, match="no scheduling policy"):
        engine.configure(replace(CONFIG, policy="nonsense"))
    assert engine.config is CONFIG
    assert [output.embedding for output in run(engine)] == [vector((1, 2, 3))]


def test_what_can_never_be_served(engine: EncoderEngine) -> None:
    with pytest.raises(TextTooLong, match=r"21 tokens.* at most 20"):
        engine.add(request("a", 21))
    with pytest.raises(UnknownTokenId, match="100"):
        engine.add(request("a", 1, prompt_token_ids=(100,)))
    with pytest.raises(EmbedsOnly, match="generates no text"):
        engine.add(request("a", 1, pooling=False))
    assert not engine.has_work
    engine.add(request("a", 20))  # no room for a token more is needed
    assert [output.embedding for output in run(engine)] == [vector(range(1, 21))]


def test_aborts(engine: EncoderEngine) -> None:
    engine.add(request("a", 2))
    engine.add(request("b", 2))
    assert engine.abort("nobody") == engine.abort("a", 1) == []
    (output,) = engine.abort("a")
    assert (output.request_id, output.finish_reason) == ("a", FinishReason.ABORT)
    assert [output.request_id for output in run(engine)] == ["b"]
    engine.add(request("a", 2))  # the id is free again
    assert [output.finish_reason for output in engine.abort_all()] == [FinishReason.ABORT]
    assert not engine.has_work


def test_one_that_is_not_finite_fails_alone(engine: EncoderEngine, runner: SumRunner) -> None:
    for name in ("a", "bb"):
        engine.add(request(name, 2))
    runner.not_finite.add(0)
    first, second = run(engine)
    assert (first.finish_reason, first.embedding) == (FinishReason.ERROR, None)
    assert "not finite" in (first.error or "")
    assert second.embedding == vector((1, 2))


def test_a_failed_step_ends_its_texts_and_two_end_the_engine(engine: EncoderEngine, runner: SumRunner) -> None:
    for place in range(5):
        engine.add(request("a" * (place + 1), 4))
    runner.raise_next = [RuntimeError("once")]
    assert [output.finish_reason for output in engine.step()] == [FinishReason.ERROR] * 3
    assert [output.finish_reason for output in engine.step()] == [FinishReason.STOP] * 2
    for place in range(5):
        engine.add(request("a" * (place + 1), 4))
    runner.raise_next = [RuntimeError("twice"), RuntimeError("once")]
    engine.step()
    assert [output.finish_reason for output in engine.step()] == [FinishReason.ERROR] * 2
    assert engine.dead is not None
    assert "RuntimeError: twice" in engine.dead
    assert not engine.has_work
    with pytest.raises(EngineDead):
        engine.add(request("b", 1))


def test_the_estimate_rises_with_what_waits(engine: EncoderEngine) -> None:
    assert engine.stats().queue_seconds == 0
    engine.add(request("a", 2))
    short = engine.stats()
    engine.add(request("b", 18))
    long = engine.stats()
    assert (short.waiting_tokens, long.waiting_tokens, long.num_waiting) == (2, 20, 2)
    assert 0 < short.queue_seconds < long.queue_seconds


async def test_it_lives_in_the_loop_as_the_other_engine_does(engine: EncoderEngine) -> None:
    loop = EngineLoop(engine)
    try:
        outputs = [output async for output in loop.submit(request("a", 3))]
        assert [output.embedding for output in outputs] == [vector((1, 2, 3))]
        with pytest.raises(TextTooLong):
            loop.submit(request("b", 21))
    finally:
        await loop.stop()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 20)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.sampled_from([("step", 0), ("fail", 0), ("nan", 0)]),
        st.tuples(st.just("policy"), st.sampled_from(["fcfs", "priority", "fair", "deadline"])),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_each_text_is_answered_once_whatever_happens(actions: list[tuple[str, Any]]) -> None:
    runner = SumRunner()
    engine = EncoderEngine(runner, LIMITS, CONFIG, clock=lambda: 0.0)
    added: dict[str, AddRequest] = {}
    outputs: list[RequestOutput] = []
    for action, value in actions:
        if action == "add":
            made = request(f"r{len(added)}", value, client=f"c{value % 3}", priority=value % 4)
            added[made.request_id] = made
            engine.add(made)
        elif action == "abort":
            outputs += engine.abort(f"r{value}")
        elif action == "policy":
            engine.configure(replace(CONFIG, policy=value))
        elif engine.has_work:
            runner.raise_next = [RuntimeError("one bad step")] if action == "fail" else []
            runner.not_finite = {len(added) - 1} if action == "nan" else set()
            outputs += engine.step()
            runner.raise_next = []
        if engine.dead is not None:  # two bad steps in a row
            break
    outputs += [] if engine.dead else run(engine)
    assert sorted(output.request_id for output in outputs) == sorted(added)
    assert not engine.has_work
    for output in outputs:
        expected = vector(added[output.request_id].prompt_token_ids) if output.finish_reason == "stop" else None
        assert output.embedding == expected
