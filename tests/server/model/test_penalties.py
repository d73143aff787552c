"""Biases, penalties and the mask of a minimum length: by their definitions and as transformers has them, on single rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.model.penalties import adjust, is_adjusted

VOCAB = 12
LARGEST = torch.finfo(torch.float32).max


def sequence(history: list[int], prompt: int, output_position: int = 0, **params: Any) -> ScheduledSequence:
    return ScheduledSequence(
        *(1, (0,), 0, (0,), SamplingParams(**params), 0, output_position),
        num_prompt_tokens=prompt,
        history=tuple(history),
    )


def adjusted(row: torch.Tensor, entry: ScheduledSequence) -> list[float]:
    changed = row.clone()
    adjust(changed, entry)
    return [float(value) for value in changed]


def row_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("penalty", [0.5, 1.1, 1.3, 10.0])
def test_repetition_is_transformers_over_prompt_and_output(penalty: float) -> None:
    row, history = row_of(), [3, 3, 5, 0, 9, 3]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), row[None].clone())[0]
    found = adjusted(row, sequence(history, prompt=4, repetition_penalty=penalty))
    assert found == pytest.approx(expected.tolist(), rel=1e-6)


def test_frequency_and_presence_look_at_the_output_alone() -> None:
    row = torch.zeros(VOCAB)
    history = [1, 1, 2, 3, 3, 3, 4]  # of the prompt the first three
    entry = sequence(history, prompt=3, frequency_penalty=0.5, presence_penalty=0.25)
    assert adjusted(row, entry) == [0, 0, 0, -1.75, -0.75, *[0] * 7]


def test_before_the_first_output_token_nothing_is_penalised_but_repetition() -> None:
    row = torch.ones(VOCAB)
    entry = sequence([1, 2], prompt=2, frequency_penalty=2, presence_penalty=2, repetition_penalty=2)
    assert adjusted(row, entry) == [1, 0.5, 0.5, *[1] * 9]


@pytest.mark.parametrize(("position", "masked"), [(0, True), (2, True), (3, False), (9, False)])
def test_stop_tokens_are_masked_until_the_minimum_is_reached(position: int, masked: bool) -> None:
    entry = sequence([], 0, position, min_tokens=3, stop_token_ids=(2, 7))
    assert is_adjusted(entry) is masked
    found = adjusted(row_of(), entry)
    assert {token for token, value in enumerate(found) if value == -math.inf} == ({2, 7} if masked else set())


def test_the_mask_holds_against_a_bias() -> None:
    entry = sequence([], 0, min_tokens=1, stop_token_ids=(2,), logit_bias=((2, 100.0),))
    assert adjusted(row_of(), entry)[2] == -math.inf


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0}, {"top_p": 0.5, "min_p": 0.1, "top_k": 3}, {"min_tokens": 5}, {"logprobs": 3}]
)
def test_rows_that_ask_for_nothing_are_left_alone(params: dict[str, Any]) -> None:
    assert not is_adjusted(sequence([1], 0, **params))


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0, 10, exclude_min=True) | st.just(5e-324),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100)).map(
            lambda biases: tuple(biases.items())
        ),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    },
)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def defined(row: list[float], entry: ScheduledSequence) -> list[float]:
    """The definition, one token at a time, in Python's own float64."""
    params, history, prompt = entry.sampling, list(entry.history or ()), entry.num_prompt_tokens
    assert params is not None
    made = []
    for token, logit in enumerate(row):
        if token in dict(params.logit_bias):
            logit = single(logit + dict(params.logit_bias)[token])
        if token in history and params.repetition_penalty != 1:
            divides = logit > 0 and params.repetition_penalty
            logit = single(logit / divides if divides else logit * params.repetition_penalty)
        if count := history[prompt:].count(token):
            logit = single(logit - params.frequency_penalty * count - params.presence_penalty)
        if token in params.stop_token_ids and entry.output_position < params.min_tokens:
            logit = -math.inf
        made.append(logit)
    return made


def single(value: float) -> float:
    """As float32, held within its finite range."""
    return float(torch.tensor(max(-LARGEST, min(LARGEST, value)), dtype=torch.float32))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(FINITE, min_size=VOCAB, max_size=VOCAB),
    st.lists(st.integers(0, VOCAB - 1), max_size=9),
    st.integers(0, 9),
    st.integers(0, 4),
    PARAMS,
)
def test_the_definition_whatever_the_numbers(
    row: list[float], history: list[int], prompt: int, position: int, params: dict[str, Any]
) -> None:
    entry = sequence(history, min(prompt, len(history)), position, **params)
    found = adjusted(torch.tensor(row), entry)
    assert not any(math.isnan(value) or value == math.inf for value in found)
    assert found == pytest.approx(defined(row, entry), rel=1e-5, abs=1e-5)
    if not is_adjusted(entry):
        assert found == row


def forbidding(*tokens: int) -> torch.Tensor:
    return torch.tensor([token in tokens for token in range(VOCAB)])


def test_a_grammars_mask_comes_after_biases_and_penalties_and_leaves_the_rest_as_it_is() -> None:
    row, entry = row_of(), sequence([1, 2], 1, grammar="g", logit_bias=((2, 100.0), (3, 1.0)))
    assert is_adjusted(entry)
    changed = row.clone()
    assert adjust(changed, entry, forbidding(0, 2))
    assert [token for token, value in enumerate(changed.tolist()) if value == -math.inf] == [0, 2]
    assert changed[3] == row[3] + 1
    assert torch.equal(changed[4:], row[4:])


@pytest.mark.parametrize(("others", "ended"), [((), True), ((5,), False)])
def test_a_grammar_at_its_end_goes_before_the_minimum_length(others: tuple[int, ...], ended: bool) -> None:
    entry = sequence([], 0, min_tokens=3, stop_token_ids=(2, 7), grammar="g")
    changed = row_of()
    assert adjust(changed, entry, forbidding(*(token for token in range(VOCAB) if token not in (2, *others))))
    assert [token for token, value in enumerate(changed.tolist()) if value > -math.inf] == ([2] if ended else [5])


def test_a_grammar_that_allows_nothing_leaves_nothing_to_choose() -> None:
    assert not adjust(row_of(), sequence([], 0, grammar="g"), forbidding(*range(VOCAB)))
