"""Sampling settings as users write them: what is normalised, and what is refused with its name and its bounds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pagemill_server.engine import params as bounds
from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.params import validated
from pagemill_server.engine.request import SamplingParams

VOCAB = 100


def refusal(**settings: Any) -> InvalidSampling:
    with pytest.raises(InvalidSampling) as caught:
        validated(SamplingParams(**settings), VOCAB)
    return caught.value


def test_the_defaults_are_valid_and_stay_as_they_are() -> None:
    assert validated(SamplingParams(), VOCAB) == SamplingParams()


def test_every_setting_has_a_check() -> None:
    """A new field without bounds would reach the engine unchecked."""
    assert set(bounds._CHECKS) == {field.name for field in fields(SamplingParams)}


def test_the_guide_names_every_setting() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "sampling.md").read_text(encoding="utf-8")
    assert all(f"`{field.name}`" in guide for field in fields(SamplingParams))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"stop": "end"}, {"stop": ("end",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": None}, {"stop": ()}),
        ({"stop_token_ids": [3, 4]}, {"stop_token_ids": (3, 4)}),
        ({"logit_bias": {"7": 1, 3: -100}}, {"logit_bias": ((3, -100.0), (7, 1.0))}),
        ({"logit_bias": [[5, 0.5]]}, {"logit_bias": ((5, 0.5),)}),
        ({"logit_bias": None}, {"logit_bias": ()}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"top_k": -1}, {"top_k": 0}),
    ],
)
def test_what_users_write_becomes_what_is_stored(written: dict[str, Any], kept: dict[str, Any]) -> None:
    assert validated(SamplingParams(**written), VOCAB) == SamplingParams(**kept)


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("temperature", 0.0, 2.0),
        ("top_p", 1e-9, 1.0),
        ("min_p", 0.0, 1.0),
        ("frequency_penalty", -2.0, 2.0),
        ("presence_penalty", -2.0, 2.0),
        ("repetition_penalty", 1e-9, 10.0),
        ("top_k", 0, 2**31 - 1),
        ("seed", -(2**63), 2**63 - 1),
        ("n", 1, 128),
        ("max_tokens", 0, 2**31 - 1),
        ("min_tokens", 0, 16),
        ("logprobs", 0, 20),
        ("prompt_logprobs", 0, 20),
    ],
)
def test_bounds_belong_to_the_range_and_what_is_beyond_is_named(name: str, lowest: Any, highest: Any) -> None:
    for value in (lowest, highest):
        assert getattr(validated(SamplingParams(**{name: value}), VOCAB), name) == value
    beyond: list[Any] = [lowest - 2, highest + 1, float("nan"), float("inf"), "1", True, [1]]
    for value in beyond:
        error = refusal(**{name: value})
        assert error.field == name
        assert str(error).startswith(f"{name} ")
        assert isinstance(error, ValueError)


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_zero_is_out_where_it_means_nothing(name: str) -> None:
    assert "above 0" in str(refusal(**{name: 0.0}))


@pytest.mark.parametrize("name", ["top_k", "seed", "n", "max_tokens", "logprobs"])
def test_a_fraction_is_no_count(name: str) -> None:
    assert "whole number" in str(refusal(**{name: 1.5}))


@pytest.mark.parametrize("name", ["temperature", "n", "max_tokens"])
def test_nothing_is_no_number_where_one_is_needed(name: str) -> None:
    assert refusal(**{name: None}).field == name


@pytest.mark.parametrize(
    "biases",
    [
        {"100": 1},
        {"-1": 1},
        {"1.0": 1},
        {" 1": 1},
        {"٣": 1},
        {"9" * 30: 1},
        {-1: 1},
        {True: 1},
        {"1": "2"},
        {"1": 101},
        {"1": -100.5},
        {"1": float("nan")},
        {"1": None},
        {"1": 1, 1: 2},
        {"01": 1, "1": 2},
        {str(i): 1 for i in range(1025)},
        [1, 2],
        "text",
        5,
    ],
)
def test_biases_that_are_none(biases: Any) -> None:
    assert refusal(logit_bias=biases).field == "logit_bias"


def test_a_refusal_names_every_way_to_say_it_right() -> None:
    assert "must map token ids to numbers" in str(refusal(logit_bias=5))
    assert "must be -1, or a whole number from 0" in str(refusal(top_k=-2))


@pytest.mark.parametrize("ids", [[100], [-1], [1.0], ["1"], [True], [2**70], [1] * 129, 5, "12", {"1": 2}])
def test_stop_token_ids_that_are_none(ids: Any) -> None:
    assert refusal(stop_token_ids=ids).field == "stop_token_ids"


@pytest.mark.parametrize("stop", [[""], ["a"] * 17, ["a" * 1001], [1], 5, {"a": "b"}])
def test_stops_that_are_none(stop: Any) -> None:
    assert refusal(stop=stop).field == "stop"


def test_a_minimum_above_the_maximum_names_both() -> None:
    assert all(number in str(refusal(min_tokens=9, max_tokens=8)) for number in ("9", "8"))


def test_truth_is_not_a_number() -> None:
    assert refusal(ignore_eos=1).field == "ignore_eos"
