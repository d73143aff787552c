"""Drawing: the distribution that min_p, top_k and top_p leave is transformers' and the definitions', to what a grid can tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from pagemill_server.engine.request import SamplingParams
from pagemill_server.model.draw import draw

POINTS = 1500


def shares(row: torch.Tensor, points: int = POINTS, **params: Any) -> list[float]:
    """How often each token is drawn, over numbers that lie evenly in [0, 1): its probability, give or take 1 / points."""
    numbers = [(point + 0.5) / points for point in range(points)]
    tokens = draw(row.expand(points, -1), [SamplingParams(**params)] * points, numbers)
    return [count / points for count in torch.bincount(torch.tensor(tokens), minlength=len(row)).tolist()]


def warped(row: torch.Tensor, temperature: float, min_p: float, top_k: int, top_p: float) -> list[float]:
    """transformers' warpers in our order, in float64."""
    scores: Any = row.double()[None]
    ids: Any = torch.zeros(1, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(temperature)(ids, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(ids, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    return [float(p) for p in scores.softmax(1)[0]]


@pytest.mark.parametrize("temperature", [0.3, 2.0])
@pytest.mark.parametrize(
    ("min_p", "top_k", "top_p"),
    [
        (0.0, 0, 1.0),
        (0.1, 0, 1.0),
        (1.0, 0, 1.0),
        (0.0, 7, 1.0),
        (0.0, 400, 1.0),
        (0.0, 0, 0.01),
        (0.0, 0, 0.5),
        (0.0, 0, 0.99),
        (0.0, 30, 0.8),
        (0.02, 30, 0.9),
    ],
)
def test_the_distribution_is_transformers(temperature: float, min_p: float, top_k: int, top_p: float) -> None:
    row = torch.randn(400, generator=torch.Generator().manual_seed(3)) * 1.5
    expected = warped(row, temperature, min_p, top_k, top_p)
    found = shares(row, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    assert found == pytest.approx(expected, abs=1.5 / POINTS)


def kept_by_definition(probabilities: list[float], min_p: float, top_k: int, top_p: float) -> set[int]:
    """Sorted, likeliest first and the lowest id among equals; a token stays while those before it have less than top_p."""
    likeliest = max(probabilities)
    order = sorted(range(len(probabilities)), key=lambda t: (-probabilities[t], t))
    order = [t for t in order if probabilities[t] >= min_p * likeliest]
    order = order[: top_k or len(order)]
    needed = top_p * sum(probabilities[t] for t in order)
    kept, mass = set(), 0.0
    for token in order:
        if mass >= needed * (1 - 1e-9):
            break
        kept.add(token)
        mass += probabilities[token]
    return kept


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=14),
    st.sampled_from([0.0, 0.0, 0.21, 1.0]),
    st.integers(0, 16),
    st.sampled_from([1.0, 0.0301, 0.33331, 0.50007, 0.77713, 0.97003]),
)
def test_what_stays_is_what_the_definitions_say(weights: list[int], min_p: float, top_k: int, top_p: float) -> None:
    """Whole-number weights: many equals, and each token that stays is at several points of the grid."""
    total = sum(weights)
    kept = kept_by_definition([weight / total for weight in weights], min_p, top_k, top_p)
    found = shares(torch.tensor(weights).double().log().float(), 400, min_p=min_p, top_k=top_k, top_p=top_p)
    drawn = {token for token, share in enumerate(found) if share}
    assert sorted(weights[t] for t in drawn) == sorted(weights[t] for t in kept)


@pytest.mark.parametrize("size", [600, 701])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.05, 1.0])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_a_flat_nucleus_is_cut_where_a_sort_would_cut_it(size: int, spread: float, top_p: float) -> None:
    """More tokens than the first guess looks at; with equals the lowest ids stay."""
    row = torch.randn(size, generator=torch.Generator().manual_seed(1)) * spread
    weights = (row.double() - row.double().max()).exp().tolist()
    kept = kept_by_definition(weights, 0.0, 0, top_p)
    numbers = [(point + 0.5) / (3 * size) for point in range(3 * size)]
    drawn = set(draw(row.expand(len(numbers), -1), [SamplingParams(top_p=top_p)] * len(numbers), numbers))
    if spread == 0.0:
        assert drawn == kept == set(range(len(kept)))
    # A float32 exponential moves the cut by a token at most, and what is rarer than the grid's step may be missed.
    assert len(drawn - kept) <= 1
    assert all(
        weights[t] < sum(weights) / len(numbers) * 1.01 or t == min(kept, key=weights.__getitem__) for t in kept - drawn
    )


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.99}, {"min_p": 0.5}])
def test_a_masked_token_is_never_drawn_at_either_end(number: float, params: dict[str, Any]) -> None:
    row = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])
    assert draw(row[None], [SamplingParams(**params)], [number])[0] in (1, 3)


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6])
def test_the_coldest_is_greedy(temperature: float) -> None:
    row = torch.tensor([3.0e38, -3.0e38, 3.1e38, 0.0])
    assert draw(row[None], [SamplingParams(temperature=temperature)], [0.9999]) == [2]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 700),
    seed=st.integers(0, 1000),
    entries=st.lists(
        st.fixed_dictionaries(
            {"temperature": st.floats(0.05, 2)},
            optional={
                "top_k": st.integers(0, 300),
                "top_p": st.floats(0.01, 1),
                "min_p": st.floats(0, 1),
            },
        ),
        min_size=2,
        max_size=9,
    ),
)
def test_a_draw_does_not_see_the_rows_beside_it(size: int, seed: int, entries: list[dict[str, Any]]) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(entries), size, generator=generator)
    numbers = torch.rand(len(entries), generator=generator, dtype=torch.float64).tolist()
    params = [SamplingParams(**entry) for entry in entries]
    together = draw(rows, params, numbers)
    backwards = draw(rows.flip(0), params[::-1], numbers[::-1])[::-1]
    alone = [draw(rows[i : i + 1], [params[i]], [numbers[i]])[0] for i in range(len(entries))]
    assert together == alone == backwards
