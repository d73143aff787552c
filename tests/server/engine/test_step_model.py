"""The fitted line of a step: right where it was measured, sane where it wasn't."""

from __future__ import annotations

import random
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.engine.step_model import Coefficients, StepModel, StepShape, attended

TRUE = Coefficients(base=0.02, per_token=1.5e-3, per_sequence=2e-4, per_context_token=4e-7)


def true_seconds(shape: StepShape) -> float:
    return (
        TRUE.base
        + TRUE.per_token * shape.num_tokens
        + TRUE.per_sequence * shape.num_sequences
        + TRUE.per_context_token * shape.num_context_tokens
    )


def decode(draw: random.Random) -> StepShape:
    return StepShape.of_chunks((draw.randrange(2000), 1) for _ in range(draw.randint(1, 32)))


def mixed(draw: random.Random) -> StepShape:
    chunks = [(draw.randrange(2000), 1) for _ in range(draw.randint(0, 32))]
    return StepShape.of_chunks([*chunks, (draw.randrange(1000), 512 - len(chunks))])


def test_a_shape_counts_what_each_token_attends_to() -> None:
    assert attended(0, 4) == 1 + 2 + 3 + 4
    assert attended(10, 3) == 11 + 12 + 13
    assert StepShape.of_chunks([(0, 4), (10, 3), (99, 1)]) == StepShape(8, 3, 10 + 36 + 100)
    entries = tuple(
        ScheduledSequence(i, (1,) * n, start, (), None, 0, 0) for i, (start, n) in enumerate([(0, 4), (10, 3)])
    )
    assert StepShape.of(SchedulerOutput(entries, 7)) == StepShape(7, 2, 46)
    assert StepShape.of(SchedulerOutput((), 0)) == StepShape(0, 0, 0)


def test_before_it_has_seen_anything_more_work_takes_longer() -> None:
    model = StepModel()
    small, large = model.seconds(StepShape(1, 1, 10)), model.seconds(StepShape(512, 1, attended(0, 512)))
    assert 0 < small < 0.1 < large < 10
    assert 0 < model.prefill_seconds(100) < model.prefill_seconds(200) < model.prefill_seconds(200, context=10_000)


def test_one_step_teaches_it_that_step() -> None:
    model = StepModel()
    model.observe(StepShape(512, 1, attended(0, 512)), 20.0)
    assert model.seconds(StepShape(512, 1, attended(0, 512))) == pytest.approx(20.0, rel=0.05)


def test_it_finds_the_line_under_noise_and_hiccups() -> None:
    draw, model = random.Random(1), StepModel()
    for step in range(600):
        shape = mixed(draw) if step % 5 == 0 else decode(draw)
        hiccup = 10 if draw.random() < 0.02 else 1
        model.observe(shape, true_seconds(shape) * draw.uniform(0.9, 1.1) * hiccup)
    for shape in [decode(draw) for _ in range(20)] + [mixed(draw) for _ in range(20)]:
        assert model.seconds(shape) == pytest.approx(true_seconds(shape), rel=0.1)
    assert model.prefill_seconds(512) == pytest.approx(
        512 * TRUE.per_token + attended(0, 512) * TRUE.per_context_token, rel=0.1
    )


def test_what_prompts_cost_is_still_known_after_many_decodes() -> None:
    draw, model = random.Random(2), StepModel()
    for step in range(20_300):
        shape = mixed(draw) if step < 300 and step % 3 == 0 else decode(draw)
        model.observe(shape, true_seconds(shape))
        if step % 50 == 0:
            model.seconds(shape)
    shape = mixed(draw)
    assert model.seconds(shape) == pytest.approx(true_seconds(shape), rel=0.1)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    draw, model = random.Random(3), StepModel()
    for step in range(8000):
        shape = mixed(draw) if step % 5 == 0 else decode(draw)
        model.observe(shape, true_seconds(shape) * (1 if step < 3000 else 3))
    shape = mixed(draw)
    assert model.seconds(shape) == pytest.approx(3 * true_seconds(shape), rel=0.1)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 1000), st.integers(0, 10**9), st.floats(allow_nan=True)),
        max_size=40,
    )
)
def test_no_measurement_makes_it_absurd(steps: list[tuple[int, int, int, float]]) -> None:
    model = StepModel()
    for tokens, sequences, context, seconds in steps:
        model.observe(StepShape(tokens, sequences, context), seconds)
    assert all(0 <= value < float("inf") for value in astuple(model.coefficients))


def test_it_goes_through_a_dict() -> None:
    draw, model = random.Random(4), StepModel()
    for _ in range(100):
        shape = mixed(draw)
        model.observe(shape, true_seconds(shape))
    again = StepModel.from_dict(model.to_dict())
    assert again.coefficients == model.coefficients
    assert again.seconds(StepShape(7, 2, 50)) == model.seconds(StepShape(7, 2, 50))


@pytest.mark.parametrize("wrong", [{"base": -1.0}, {"per_token": float("nan")}, {"per_token": float("inf")}])
def test_a_dict_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        StepModel.from_dict(wrong)
    with pytest.raises(TypeError):
        StepModel.from_dict({"slope": 1.0})


@pytest.mark.parametrize("seconds", [1e-6 * (1 + index / 37) for index in range(0, 60, 3)])
def test_steps_of_no_time_at_all_are_fitted_too(seconds: float) -> None:
    model = StepModel()
    shape = StepShape(32_000, 64, 64 * attended(0, 500))
    model.observe(shape, seconds)
    assert 0 <= model.seconds(shape) < 2 * seconds
