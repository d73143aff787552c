"""Sampling: greedy, temperature, top_k, top_p, log-probabilities, rows that are not finite; each row on its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pagemill_server.engine.request import SampledToken, SamplingParams
from pagemill_server.engine.schedule import RunnerOutput, ScheduledSequence
from pagemill_server.model.operations import likeliest
from pagemill_server.model.sampler import sample

LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.25, 0.2, 0.1]))


def sequence(seq_id: int, seed: int = 0, position: int = 0, index: int = 0, **params: Any) -> ScheduledSequence:
    history = (3, 1, 1)  # the first is the prompt
    return ScheduledSequence(
        *(seq_id, (0,), 0, (0,), SamplingParams(**params), seed, position), index, num_prompt_tokens=1, history=history
    )


def draw(row: torch.Tensor, count: int, **params: Any) -> np.ndarray[Any, Any]:
    """`count` tokens at successive positions of one seed, drawn as one batch."""
    sequences = [sequence(i, 1, i, **params) for i in range(count)]
    output = sample(row.expand(count, -1), sequences)
    return np.array([output.sampled[i].token_id for i in range(count)])


def shares(row: torch.Tensor, count: int = 4000, **params: Any) -> list[float]:
    return [int(drawn) / count for drawn in np.bincount(draw(row, count, **params), minlength=len(row))]


def test_greedy_takes_the_likeliest_and_the_lowest_id_among_equals() -> None:
    rows = torch.tensor([[0.0, 3.0, 1.0, 3.0], [-5.0, -7.0, -9.0, -5.0], [2.0, 2.0, 2.0, 2.0]])
    output = sample(rows, [sequence(i, temperature=0.0) for i in range(3)])
    assert output == RunnerOutput({0: SampledToken(1), 1: SampledToken(0), 2: SampledToken(0)})


def test_greedy_on_a_wide_row_of_equals_takes_the_first() -> None:
    rows = torch.zeros(2, 49152)
    rows[1, 100:] = 1.0
    output = sample(rows, [sequence(i, temperature=0.0) for i in range(2)])
    assert [output.sampled[i].token_id for i in range(2)] == [0, 100]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_shapes_the_distribution(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(0).tolist()
    assert shares(LOGITS, temperature=temperature) == pytest.approx(expected, abs=0.03)


def test_a_tiny_temperature_is_greedy_and_a_huge_one_even() -> None:
    assert set(draw(LOGITS * 100, 50, temperature=1e-6)) == {1}
    assert shares(LOGITS, temperature=1e6) == pytest.approx([0.2] * 5, abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.41}, [1, 2]),
        ({"top_p": 0.84}, [1, 2, 3]),
        ({"top_p": 0.86}, [1, 2, 3, 4]),
        ({"top_p": 1e-9}, [1]),
        ({"top_k": 3, "top_p": 0.46}, [1]),  # of 0.85 that top_k leaves, 0.4 is 0.47
        ({"top_k": 3, "top_p": 0.48}, [1, 2]),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest(params: dict[str, Any], kept: list[int]) -> None:
    probabilities = LOGITS.exp()
    expected = [float(probabilities[i] / probabilities[kept].sum()) if i in kept else 0.0 for i in range(5)]
    measured = shares(LOGITS, **params)
    assert measured == pytest.approx(expected, abs=0.03)
    assert [i for i, share in enumerate(measured) if share > 0] == kept


def test_top_p_looks_beyond_its_first_guess_when_the_distribution_is_flat() -> None:
    flat = torch.zeros(1000)
    tokens = draw(flat, 3000, top_p=0.9)
    assert 850 < len(set(tokens.tolist())) <= 901  # 0.9 of 1000 (and one for rounding), nearly all of them seen


def test_temperature_comes_before_top_p() -> None:
    assert set(draw(LOGITS, 300, temperature=0.2, top_p=0.85)) == {1}
    assert set(draw(LOGITS, 300, temperature=100.0, top_p=0.79)) == {1, 2, 3, 4}


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    row = torch.tensor([-2000.0, 0.0, -2000.0, 0.0])
    assert set(draw(row, 500)) == {1, 3}


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 1.0, "logprobs": 2},
    {},
    {"top_p": 0.95, "logprobs": 0},
    {"top_k": 5, "min_p": 0.01},
    {"repetition_penalty": 1.3, "top_p": 0.5},
    {"logit_bias": ((4, 5.0), (6, -100.0)), "presence_penalty": -0.5},
    {"min_tokens": 9, "stop_token_ids": (1, 2), "temperature": 2.0},
    {"temperature": 0.3, "top_p": 0.99, "top_k": 250},
]


@pytest.mark.parametrize("size", [7, 300, 1037])
def test_a_row_depends_on_itself_its_settings_and_its_counter_alone(size: int) -> None:
    count = 4 * len(SETTINGS)
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(0))
    rows[11] = math.nan
    sequences = [sequence(i, i % 3, i % 4, i % 2, **SETTINGS[i % len(SETTINGS)]) for i in range(count)]
    together = sample(rows, sequences)
    assert together.failed == {11}
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    assert sample(rows[order], [sequences[i] for i in order]) == together
    for index, entry in enumerate(sequences):
        alone = sample(rows[index : index + 1], [entry])
        assert alone.sampled == {i: token for i, token in together.sampled.items() if i == index}


def test_the_sequences_of_a_request_draw_differently_from_one_seed() -> None:
    row = torch.zeros(1, 1000)
    drawn = [sample(row, [sequence(0, 5, 3, index)]).sampled[0].token_id for index in range(20)]
    assert len(set(drawn)) > 15


def test_penalties_change_the_choice_and_not_the_log_probabilities() -> None:
    rows = LOGITS.expand(2, -1)  # token 1 is the likeliest, and twice in the output
    plain, penalised = (sequence(i, temperature=0.0, logprobs=5, frequency_penalty=float(i)) for i in range(2))
    sampled = sample(rows, [plain, penalised]).sampled
    assert (sampled[0].token_id, sampled[1].token_id) == (1, 2)
    assert sampled[0].top == sampled[1].top
    assert sampled[1].logprob == pytest.approx(math.log(0.25), abs=1e-6)


def test_what_a_row_is_given_is_left_as_it_was() -> None:
    """The logits are the model's: a second reader, the log-probabilities, must find them."""
    rows = LOGITS.repeat(2, 1)
    before = rows.clone()
    sample(rows, [sequence(0, logit_bias=((1, -100.0),)), sequence(1, repetition_penalty=9.0)])
    assert torch.equal(rows, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_stop_token_before_the_minimum(temperature: float) -> None:
    settings: dict[str, Any] = {"temperature": temperature, "min_tokens": 3, "stop_token_ids": (1, 2)}
    early = sample(LOGITS.expand(200, -1), [sequence(i, i, 2, **settings) for i in range(200)]).sampled
    late = sample(LOGITS.expand(200, -1), [sequence(i, i, 3, **settings) for i in range(200)]).sampled
    assert {token.token_id for token in early.values()} <= {0, 3, 4}
    assert 1 in {token.token_id for token in late.values()}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_token_that_may_be_drawn_fails_alone(temperature: float) -> None:
    hopeless = sequence(1, temperature=temperature, min_tokens=1, stop_token_ids=(0, 1, 2, 3, 4))
    biased = sequence(2, temperature=temperature, logit_bias=((3, 100.0),))
    output = sample(LOGITS.expand(3, -1), [sequence(0, temperature=temperature), hopeless, biased])
    assert output.failed == {1}
    assert output.sampled[2].token_id == 3
    assert 0 in output.sampled


def test_a_row_so_large_that_its_sum_overflows_is_finite_all_the_same() -> None:
    rows = torch.full((1, 8), 3e38)
    assert sample(rows, [sequence(0, temperature=0.0)]).sampled == {0: SampledToken(0)}


def test_different_seeds_and_positions_draw_differently() -> None:
    row = torch.zeros(1, 1000)
    by_seed = {sample(row, [sequence(0, seed=seed)]).sampled[0].token_id for seed in range(20)}
    by_position = {sample(row, [sequence(0, position=position)]).sampled[0].token_id for position in range(20)}
    assert min(len(by_seed), len(by_position)) > 15


def test_logprobs_are_the_raw_distribution_whatever_the_temperature() -> None:
    shaped: list[dict[str, Any]] = [{"temperature": 0.0}, *({"temperature": t, "top_k": 1} for t in (0.5, 5.0))]
    for params in shaped:
        token = sample(LOGITS[None], [sequence(0, logprobs=3, **params)]).sampled[0]
        assert token.token_id == 1
        assert token.logprob == pytest.approx(math.log(0.4), abs=1e-6)
        assert [entry.token_id for entry in token.top] == [1, 2, 3]
        assert [entry.logprob for entry in token.top] == pytest.approx(
            [math.log(p) for p in (0.4, 0.25, 0.2)], abs=1e-6
        )


def test_logprobs_of_a_token_that_is_not_among_the_likeliest() -> None:
    rows = LOGITS.expand(200, -1)
    output = sample(rows, [sequence(i, 3, i, temperature=1.0, logprobs=1) for i in range(200)])
    unlikely = [token for token in output.sampled.values() if token.token_id == 0]
    assert unlikely
    assert unlikely[0].logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert [entry.token_id for entry in unlikely[0].top] == [1]


def test_logprobs_zero_is_the_sampled_token_alone_and_none_is_nothing() -> None:
    output = sample(LOGITS.expand(2, -1), [sequence(0, temperature=0.0, logprobs=0), sequence(1, temperature=0.0)])
    assert output.sampled[0].logprob == pytest.approx(math.log(0.4), abs=1e-6)
    assert output.sampled[0].top == ()
    assert output.sampled[1] == SampledToken(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    rows = LOGITS.repeat(3, 1)
    rows[1, 2] = bad
    output = sample(rows, [sequence(i, temperature=temperature, logprobs=2) for i in range(3)])
    assert output.failed == {1}
    assert sorted(output.sampled) == [0, 2]


def test_the_likeliest_is_the_same_where_the_native_library_looks_for_it_and_where_torch_does() -> None:
    rows = torch.randn(6, 300, generator=torch.Generator().manual_seed(2))
    rows[1, 7], rows[2, 299], rows[3] = math.nan, -math.inf, 3e38
    wider = torch.cat((rows, torch.full((6, 1), math.nan)), dim=1)[:, :300]  # not contiguous: torch's turn
    assert likeliest(rows) == likeliest(wider) == [int(rows[0].argmax()), None, None, 0, *rows[4:].argmax(1).tolist()]


def test_nothing_to_sample_is_an_empty_answer() -> None:
    assert sample(torch.zeros(0, 5), []) == RunnerOutput({})


def test_a_grammar_changes_its_own_row_alone_and_not_its_logprobs() -> None:
    rows = torch.stack([LOGITS, LOGITS, LOGITS])
    plain = [sequence(i, seed=i, logprobs=2) for i in range(3)]
    held = [plain[0], sequence(1, seed=1, logprobs=2, grammar="g"), plain[2]]
    expected = sample(rows, plain).sampled
    found = sample(rows, held, {1: torch.tensor([False, True, True, True, True])}).sampled
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert found[1].token_id == 0
    assert found[1].top == expected[1].top
    assert found[1].logprob == pytest.approx(math.log(0.05))


def test_a_row_with_a_grammar_and_without_its_mask_fails_alone() -> None:
    output = sample(torch.stack([LOGITS, LOGITS]), [sequence(1, grammar="g"), sequence(2)])
    assert (output.failed, list(output.sampled)) == ({1}, [2])


def test_what_a_mask_leaves_is_drawn_as_the_rest_of_the_distribution() -> None:
    forbidden = torch.tensor([False, True, False, True, False])
    sequences = [sequence(i, 1, i, grammar="g") for i in range(4000)]
    output = sample(LOGITS.expand(4000, -1), sequences, dict.fromkeys(range(4000), forbidden))
    drawn = np.bincount([output.sampled[i].token_id for i in range(4000)], minlength=5) / 4000
    assert drawn.tolist() == pytest.approx([0.125, 0, 0.625, 0, 0.25], abs=0.03)
