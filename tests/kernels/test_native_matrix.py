"""The native matrix products: against float64, and each row against itself in other company, for every instruction set."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from pagemill_kernels.native import library
from pagemill_kernels.native.matrix import Epilogue, Matrix, Pool
from tests.kernels.native_libraries import INSTRUCTION_SETS, use_instruction_set

F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
KINDS = [(F32, F32), (BF16, F32), (F16, F32), (I8, F32), (BF16, BF16), (I8, BF16)]  # stored, arithmetic
ALL = pytest.mark.parametrize(("stored", "arithmetic"), KINDS, ids=lambda dtype: str(dtype).removeprefix("torch."))
# Fewer outputs than a panel, odd ones, odd inputs, and SmolLM2's four.
SHAPES = [(1, 1), (7, 3), (33, 48), (130, 77), (960, 576), (576, 1536)]
ROWS = [*range(1, 41), 64, 129, 513]


@pytest.fixture(params=INSTRUCTION_SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from use_instruction_set(request.param, monkeypatch)


@functools.cache
def pool(threads: int) -> Pool:
    return Pool(threads)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_of(matrix: Matrix) -> torch.Tensor:
    return torch.stack([matrix.row(output) for output in range(matrix.shape[0])])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_near(
    y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, arithmetic: torch.dtype
) -> None:
    """Within what a chain of float32 sums may lose, of the magnitudes that were summed."""
    x = x.to(arithmetic).double()
    expected = x @ weight.double().T + bias.double()
    magnitude = x.abs() @ weight.double().abs().T + bias.double().abs()
    assert ((y - expected).abs() <= magnitude * 2**-24 * (4 + 2 * x.shape[1] ** 0.5)).all()


@ALL
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
@pytest.mark.parametrize("paired", [False, True])
def test_products_are_those_of_the_stored_weights(
    stored: torch.dtype, arithmetic: torch.dtype, out: int, inputs: int, paired: bool
) -> None:
    out += paired and out % 2
    weight, bias, x = randn(out, inputs), randn(out, seed=1), randn(27, inputs, seed=2)
    matrix = Matrix(weight, bias, stored, arithmetic, paired)
    assert_near(matrix.linear(pool(2), x), x, rows_of(matrix), bias, arithmetic)
    none = Matrix(weight, None, stored, arithmetic, paired)
    assert_near(none.linear(pool(1), x), x, rows_of(none), torch.zeros(out), arithmetic)


@ALL
@pytest.mark.parametrize(("out", "inputs"), [(130, 77), (96, 576)])
def test_a_row_has_the_same_bits_in_any_company(
    stored: torch.dtype, arithmetic: torch.dtype, out: int, inputs: int
) -> None:
    matrix = Matrix(randn(out, inputs), randn(out, seed=1), stored, arithmetic)
    x = randn(513, inputs, seed=2)
    alone = torch.cat([matrix.linear(pool(1), row[None]) for row in x])
    for number, rows in enumerate(ROWS):
        for threads in (1, 2, 3) if rows > 40 else (1 + number % 3,):
            assert same_bits(matrix.linear(pool(threads), x[-rows:]), alone[-rows:])


@ALL
def test_a_large_product_of_many_pieces_too(stored: torch.dtype, arithmetic: torch.dtype) -> None:
    matrix = Matrix(randn(1536, 2050), None, stored, arithmetic)
    x = randn(70, 2050, seed=2)
    alone = torch.cat([matrix.linear(pool(1), row[None]) for row in x])
    for threads in (1, 2, 3):
        assert same_bits(matrix.linear(pool(threads), x), alone)


@ALL
def test_what_is_not_finite_stays_in_its_row(stored: torch.dtype, arithmetic: torch.dtype) -> None:
    matrix = Matrix(randn(70, 49), None, stored, arithmetic)
    x = randn(30, 49, seed=1)
    whole = matrix.linear(pool(1), x)
    x[[3, 29]], x[11, 48] = float("nan"), float("inf")
    y = matrix.linear(pool(2), x)
    spoilt = torch.zeros(30, dtype=torch.bool)
    spoilt[[3, 11, 29]] = True
    assert not y[spoilt].isfinite().any()
    assert same_bits(y[~spoilt], whole[~spoilt])


@ALL
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_swiglu(stored: torch.dtype, arithmetic: torch.dtype, rows: int) -> None:
    matrix = Matrix(randn(2 * 57, 48), randn(2 * 57, seed=1), stored, arithmetic, paired=True)
    x = randn(rows, 48, seed=2)
    both = matrix.linear(pool(2), x)
    gate, up = both[:, :57], both[:, 57:]
    y = matrix.product(pool(2), x, torch.empty(rows, 57), Epilogue.SWIGLU)
    torch.testing.assert_close(y, functional.silu(gate) * up, rtol=2e-6, atol=1e-7)
    narrow = matrix.product(pool(2), x, torch.empty(rows, 57, dtype=BF16), Epilogue.SWIGLU)
    assert torch.equal(narrow, y.to(BF16))


def test_swiglu_of_extreme_gates() -> None:
    gates = torch.tensor([0.0, -0.0, 1e-30, 20.0, -20.0, 87.0, -87.0, 89.0, -89.0, -200.0, 1e30, -1e30, float("nan")])
    matrix = Matrix(
        torch.cat([torch.eye(13), torch.zeros(13, 13)]), torch.cat([torch.zeros(13), torch.ones(13)]), paired=True
    )
    x = torch.where(torch.eye(13) > 0, gates, torch.zeros(()))  # one gate a row
    y = matrix.product(pool(1), x, torch.empty(13, 13), Epilogue.SWIGLU).diagonal()[:12]
    expected = functional.silu(gates[:12].double()).float()
    torch.testing.assert_close(y, expected, rtol=3e-7, atol=1e-36)
    assert matrix.product(pool(1), x, torch.empty(13, 13), Epilogue.SWIGLU)[12].isnan().any()


@ALL
def test_add_and_rounding(stored: torch.dtype, arithmetic: torch.dtype) -> None:
    matrix = Matrix(randn(45, 32), randn(45, seed=1), stored, arithmetic)
    x, before = randn(9, 32, seed=2), randn(9, 45, seed=3)
    product = matrix.linear(pool(2), x)
    assert torch.equal(matrix.product(pool(2), x, before.clone(), Epilogue.ADD), before + product)
    assert torch.equal(matrix.product(pool(2), x, torch.empty(9, 45, dtype=BF16)), product.to(BF16))


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("out", "inputs"), [(1, 1), (18, 3), (70, 300)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_weights_come_back_as_they_were(dtype: torch.dtype, out: int, inputs: int, paired: bool) -> None:
    out += paired and out % 2
    weight = randn(out, inputs).to(dtype)
    for arithmetic in (F32, BF16) if dtype is BF16 else (F32,):
        matrix = Matrix(weight, None, dtype, arithmetic, paired)
        assert torch.equal(rows_of(matrix), weight.float())
    assert matrix.bytes >= weight.nbytes


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_weights_that_are_wider_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    weight = randn(40, 50)
    assert torch.equal(rows_of(Matrix(weight, None, dtype)), weight.to(dtype).float())


@pytest.mark.parametrize("arithmetic", [F32, BF16])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_int8_is_within_half_a_step_of_each_output(dtype: torch.dtype, arithmetic: torch.dtype) -> None:
    weight = (randn(40, 51) * torch.logspace(-6, 3, 40)[:, None]).to(dtype)
    weight[5] = 0.0
    kept = rows_of(Matrix(weight, None, I8, arithmetic))
    largest = weight.float().abs().amax(dim=1, keepdim=True)
    assert ((kept - weight.float()).abs() <= largest * (0.5 / 127 + 1e-6)).all()
    assert torch.equal(kept.abs().amax(dim=1, keepdim=True) > 0, largest > 0)
    scale = largest / 127.0
    expected = torch.where(largest > 0, (weight.float() / scale).round() * scale, torch.zeros(()))
    assert torch.equal(kept, expected)


def test_an_int8_output_whose_weight_is_not_finite_is_none_either() -> None:
    weight = randn(3, 8)
    weight[1, 2] = float("inf")
    y = Matrix(weight, None, I8).linear(pool(1), randn(2, 8, seed=1))
    assert y.isfinite().all(dim=0).tolist() == [True, False, True]


def test_no_rows() -> None:
    assert Matrix(randn(5, 4)).linear(pool(2), torch.empty(0, 4)).shape == (0, 5)


def test_x_need_not_be_contiguous() -> None:
    matrix, x = Matrix(randn(5, 4)), randn(4, 3, seed=1).T
    assert torch.equal(matrix.linear(pool(1), x), matrix.linear(pool(1), x.contiguous()))


def test_what_cannot_be_is_refused() -> None:
    weight = randn(5, 4)
    for arguments in (
        {"weight": randn(4)},
        {"weight": torch.empty(0, 4)},
        {"weight": weight.double()},
        {"weight": weight, "bias": randn(4)},
        {"weight": weight, "bias": randn(5).double()},
        {"weight": weight, "stored": torch.int32},
        {"weight": weight, "arithmetic": BF16},  # stored as float32
        {"weight": weight, "stored": F16, "arithmetic": BF16},
        {"weight": weight, "paired": True},  # an odd number
    ):
        with pytest.raises(ValueError, match=r"wanted|possible|arithmetic|gates"):
            Matrix(**arguments)
    matrix, x = Matrix(weight), randn(2, 4)
    for shape in ((2, 5), (4,)):
        with pytest.raises(ValueError, match="x is"):
            matrix.linear(pool(2), torch.empty(shape))
    with pytest.raises(ValueError, match="paired"):
        matrix.product(pool(2), x, torch.empty(2, 2), Epilogue.SWIGLU)
    for y in (torch.empty(2, 4), torch.empty(2, 4, dtype=BF16), torch.empty(5, 2).T, torch.empty(2, 5, dtype=F16)):
        with pytest.raises(ValueError, match="y is"):
            matrix.product(pool(2), x, y)
    with pytest.raises(ValueError, match="y is"):
        matrix.product(pool(2), x, torch.empty(2, 5, dtype=BF16), Epilogue.ADD)
    for output in (-1, 5):
        with pytest.raises(IndexError):
            matrix.row(output)
    with pytest.raises(ValueError, match="0 threads"):
        Pool(0)


def test_a_matrix_is_freed_with_its_owner() -> None:
    matrix = Matrix(randn(5, 4))
    freed = weakref.ref(matrix)
    del matrix
    gc.collect()
    assert freed() is None


def test_the_library_says_what_it_was_built_for(request: pytest.FixtureRequest) -> None:
    assert library.loaded().pm_isa().decode() == request.node.callspec.params["instruction_set"]
