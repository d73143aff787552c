"""Costs and waits by arithmetic; that the wait is near the truth is measured against an engine on a clock of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagemill_server.engine.estimate import FIRST_GUESS, Estimator, Load, retry_after
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.step_model import Coefficients, StepModel
from tests.server.engine.policies.driving import Driven
from tests.server.engine.scripted import make_request

PLAIN = StepModel(Coefficients(base=0.1, per_token=0.01, per_sequence=0.0, per_context_token=0.0))
NOTHING = Load(0, 0, 0, 0, 0, 0, max_num_seqs=4, max_num_batched_tokens=100, free_tokens=10_000)


def sequence_of(prompt: int, max_tokens: int) -> Sequence:
    return Sequence(0, make_request(prompt, max_tokens), seed=0)


def test_the_cost_of_a_sequence_is_its_blocks_and_its_steps() -> None:
    estimator = Estimator(PLAIN, block_size=4)
    cost = estimator.cost(sequence_of(8, max_tokens=5))
    assert (cost.blocks, cost.most_blocks) == (3, 4)
    assert cost.prefill_seconds == pytest.approx(0.1 + 8 * 0.01)
    assert cost.seconds == pytest.approx(cost.prefill_seconds + 4 * 0.11)


def test_answers_that_ended_tell_how_long_others_get() -> None:
    estimator = Estimator(PLAIN, block_size=4)
    before = estimator.cost(sequence_of(8, max_tokens=1000)).seconds
    assert before == pytest.approx(0.18 + (FIRST_GUESS - 1) * 0.11)
    for _ in range(200):
        ended = sequence_of(1, max_tokens=10)
        ended.token_ids += [0] * 10
        estimator.finished(ended)
    assert estimator.cost(sequence_of(8, max_tokens=1000)).seconds == pytest.approx(0.18 + 9 * 0.11, rel=0.01)


def test_what_is_computed_already_costs_nothing_again() -> None:
    estimator = Estimator(PLAIN, block_size=4)
    sequence = sequence_of(8, max_tokens=1)
    sequence.num_computed_tokens = 6
    assert estimator.cost(sequence).prefill_seconds == pytest.approx(0.1 + 2 * 0.01)


def test_an_idle_engine_keeps_nobody_waiting() -> None:
    assert Estimator(PLAIN, 4).queue_seconds(NOTHING) == 0


def test_with_a_free_place_the_wait_is_the_step_that_runs() -> None:
    load = replace(NOTHING, num_running=2, running_tokens=50)
    assert Estimator(PLAIN, 4).queue_seconds(load) == pytest.approx(0.12)


def test_prompts_that_wait_are_computed_first() -> None:
    load = replace(NOTHING, num_running=1, running_tokens=50, num_waiting=1, waiting_tokens=990)
    assert Estimator(PLAIN, 4).queue_seconds(load) == pytest.approx(10 * 0.11 + 9.9)


@pytest.mark.parametrize(
    "full",
    [
        replace(NOTHING, num_running=4, running_tokens=400, furthest_output=60),
        replace(NOTHING, num_running=4, running_tokens=400, furthest_output=60, max_num_seqs=100, free_tokens=0),
    ],
)
def test_without_a_place_or_blocks_somebody_must_end(full: Load) -> None:
    estimator = Estimator(PLAIN, 4)
    alone = estimator.queue_seconds(full)
    assert alone == pytest.approx(FIRST_GUESS / 4 * 0.14)
    behind = estimator.queue_seconds(replace(full, num_waiting=3, waiting_tokens=3))
    assert behind == pytest.approx(4 * FIRST_GUESS / 4 * 0.14 + 0.03)


def test_answers_that_got_long_are_known_to_be_long() -> None:
    full = replace(NOTHING, num_running=4, running_tokens=4000, running_output=4 * 500, furthest_output=600)
    assert Estimator(PLAIN, 4).queue_seconds(full) == pytest.approx(500 / 4 * 0.14)


def test_those_that_began_together_end_together() -> None:
    full = replace(NOTHING, num_running=4, running_tokens=400, furthest_output=4)
    assert Estimator(PLAIN, 4).queue_seconds(full) == pytest.approx((FIRST_GUESS - 4) * 0.14)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, 1), (0.2, 1), (1.2, 2), (119.5, 120), (500, 120), (math.inf, 120), (math.nan, 120), (-3, 1)],
)
def test_retry_after_is_bounded(seconds: float, said: int) -> None:
    assert retry_after(seconds) == said


@pytest.mark.parametrize(("waiting", "answer"), [(0, 20), (4, 20), (12, 20), (12, 80), (40, 10)])
@pytest.mark.parametrize("scarce", ["places", "blocks"])
def test_the_wait_of_a_newcomer_is_near_the_estimate(waiting: int, answer: int, scarce: str) -> None:
    """On the real engine, whose steps take a second each, after it has seen some answers of that length."""
    room = {"max_num_seqs": 4} if scarce == "places" else {"max_num_seqs": 64, "num_blocks": 4 * (8 + answer) // 4}
    driven = Driven(**({"num_blocks": 1024} | room))
    for number in range(60):
        driven.add(f"before{number}", prompt=8, max_tokens=answer)
    driven.run(until=lambda: len(driven.ended) == 40)
    driven.engine.abort_all()
    for number in range(4 + waiting):
        driven.add(f"ahead{number}", prompt=8, max_tokens=answer)
        driven.run(until=lambda: True) if number % 3 else driven.step()
    estimate, began = driven.engine.stats().queue_seconds, driven.now
    driven.add("newcomer", prompt=8, max_tokens=answer)
    driven.run(until=lambda: "newcomer" in driven.first_token)
    assert 0.4 < estimate / (driven.first_token["newcomer"] - began) < 2.5
