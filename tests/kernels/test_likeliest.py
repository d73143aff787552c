"""The likeliest token of a row: the first of equals, wherever it stands, and nothing of a row with a value that is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from pagemill_kernels.native.likeliest import likeliest
from tests.kernels.native_libraries import INSTRUCTION_SETS, use_instruction_set


@pytest.fixture(params=INSTRUCTION_SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from use_instruction_set(request.param, monkeypatch)


SIZES = [1, 7, 8, 15, 16, 33, 1023, 1024, 1025, 5000, 49152]


@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_place_of_the_largest(size: int) -> None:
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    assert likeliest(rows) == rows.argmax(1).tolist()
    assert likeliest(-rows.abs() - 1e30) == (-rows.abs() - 1e30).argmax(1).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_of_equals_it_is_the_first(size: int) -> None:
    places = sorted({0, size // 3, size // 2, size - 1})
    rows = torch.zeros(len(places), size)
    for row, place in enumerate(places):
        rows[row, place:] = 2.5
    assert likeliest(rows) == places


def test_zeros_of_both_signs_are_equals() -> None:
    assert likeliest(torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]])) == [1, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", SIZES)
def test_a_row_that_is_not_finite_has_none(size: int, bad: float) -> None:
    places = sorted({0, size // 3, size - 2 if size > 1 else 0, size - 1})
    rows = torch.randn(2 * len(places), size)
    for row, place in enumerate(places):
        rows[2 * row, place] = bad
    found = likeliest(rows)
    assert found[::2] == [None] * len(places)
    assert found[1::2] == rows[1::2].argmax(1).tolist()


def test_a_row_so_large_that_its_sum_overflows_is_finite_all_the_same() -> None:
    assert likeliest(torch.full((1, 2000), 3e38)) == [0]
    assert likeliest(torch.full((1, 2000), -3e38)) == [0]


@pytest.mark.parametrize("logits", [torch.zeros(2, 3).double(), torch.zeros(3, 2).t(), torch.zeros(2, 0)])
def test_what_it_would_misread_is_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="logits"):
        likeliest(logits)
