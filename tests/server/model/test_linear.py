"""The packed product: right, and a row's bits are the same in any batch. On one thread and two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from pagemill_server.model.linear import PackedLinear, PlainLinear, can_pack, make_linear, rows_computed


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("in_size", [16, 100, 576, 1536, 2048])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_has_the_same_bits_in_any_batch(in_size: int, bias: bool) -> None:
    weight, offset = randn(192, in_size), randn(192, seed=1) if bias else None
    linear = make_linear(weight, offset)
    rows = randn(130, in_size, seed=2)
    whole = linear(rows)
    torch.testing.assert_close(whole, functional.linear(rows, weight, offset), rtol=1e-4, atol=1e-4)
    for count in (1, 2, 3, 5, 16, 17, 31, 64, 100):
        assert torch.equal(linear(rows[:count]), whole[:count])
    for row in range(0, 130, 13):
        assert torch.equal(linear(rows[row : row + 1]), whole[row : row + 1])


def test_few_numbers_of_rows_are_asked_of_the_library_whatever_steps_hold() -> None:
    asked = {rows_computed(rows) for rows in range(1, 513)}
    assert len(asked) == 16 + 5 * 8
    for rows in range(1, 5000):
        assert rows <= rows_computed(rows) <= rows * 9 / 8
        assert rows_computed(rows_computed(rows)) == rows_computed(rows)
    linear = PackedLinear(randn(64, 100), None)
    made: set[int] = set()
    product = linear._product
    linear._product = lambda x: (made.add(len(x)), product(x))[1]  # type: ignore[method-assign,func-returns-value]
    for rows in range(1, 200):
        assert linear(randn(rows, 100)).shape == (rows, 64)
    assert made <= asked | {208}


def test_a_single_row_is_padded_where_it_would_differ() -> None:
    linear = PackedLinear(randn(64, 2048), None)
    row = randn(1, 2048)
    alone, doubled = linear._product(row), linear._product(row.repeat(2, 1))[:1]
    assert linear.pads == (not torch.equal(alone, doubled))
    assert torch.equal(linear(row), doubled)


def test_what_cant_be_packed_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_pack()
    assert isinstance(make_linear(randn(4, 8)), PackedLinear)
    half = make_linear(randn(4, 8).bfloat16(), randn(4).bfloat16())
    assert isinstance(half, PlainLinear)
    assert half(randn(2, 8).bfloat16()).dtype == torch.bfloat16
    monkeypatch.setattr("pagemill_server.model.linear.can_pack", lambda: False)
    plain = make_linear(randn(4, 8), randn(4))
    assert isinstance(plain, PlainLinear)
    assert torch.equal(plain(randn(2, 8)), functional.linear(randn(2, 8), randn(4, 8), randn(4)))
