"""Products by tiles (AMX): the loops with emulated tiles wherever there is a compiler, the instructions where a processor has them.

Where it has none, only the instructions themselves (`AmxTiles` of tiles.h) go untested.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pagemill_kernels.native import build, functions, library
from pagemill_kernels.native.matrix import Matrix, Pool
from tests.kernels.emulating import compile_emulated
from tests.kernels.native_libraries import use_instruction_set

BF16, I8 = torch.bfloat16, torch.int8
PANEL = 32
STORED = pytest.mark.parametrize("stored", [BF16, I8], ids=["bfloat16", "int8"])
# Less than a tile of k, whole ones, one and a half, and odd numbers.
DEPTHS = [1, 2, 7, 31, 32, 33, 64, 77, 96]
ROWS = [1, 2, 15, 16, 17, 31, 32, 33, 40, 48, 49, 64, 70]

Run = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, int]]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(out: int, inputs: int, stored: torch.dtype) -> torch.Tensor:
    if stored is BF16:
        return randn(out, inputs).to(BF16)
    return torch.randint(-127, 128, (out, inputs), generator=torch.Generator().manual_seed(0), dtype=I8)


def packed(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] → [panels, pairs of k, PANEL, 2], zeros where there is no k."""
    out, inputs = weight.shape
    pairs = (inputs + 1) // 2
    padded = torch.zeros(out, 2 * pairs, dtype=weight.dtype)
    padded[:, :inputs] = weight
    return padded.view(out // PANEL, PANEL, pairs, 2).transpose(1, 2).contiguous()


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """(weight, x bfloat16) → the products, and how many tiles they took."""
    made = compile_emulated(tmp_path_factory.mktemp("tiles"), "emulated_products.cpp")
    function = ctypes.CDLL(str(made)).emulated_product
    size, pointer = ctypes.c_int, ctypes.c_void_p
    function.argtypes = [pointer, ctypes.c_int64, size, size, pointer, size, size, size, pointer]

    def run(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        out, inputs = weight.shape
        panels = packed(weight)
        y = torch.zeros(len(x), out)
        count = len(panels)
        each = panels[0].nbytes
        int8 = weight.dtype is I8
        tiles = function(panels.data_ptr(), each, count, int8, x.data_ptr(), x.stride(0), len(x), inputs, y.data_ptr())
        return y, tiles

    return run


@STORED
@pytest.mark.parametrize("inputs", DEPTHS)
@pytest.mark.parametrize("panels", [1, 2, 3])
def test_the_loops_give_the_product(emulated: Run, stored: torch.dtype, inputs: int, panels: int) -> None:
    weight = weights(panels * PANEL, inputs, stored)
    for rows in ROWS:
        x = randn(rows, inputs, seed=1).to(BF16)
        y, _ = emulated(weight, x)
        magnitude = x.double().abs() @ weight.double().abs().T
        assert ((y - x.double() @ weight.double().T).abs() <= magnitude * 2**-22).all(), rows


@STORED
@pytest.mark.parametrize("inputs", [77, 96])
def test_a_row_has_the_same_bits_in_any_company(emulated: Run, stored: torch.dtype, inputs: int) -> None:
    weight, x = weights(3 * PANEL, inputs, stored), randn(70, inputs, seed=1).to(BF16)
    alone = torch.cat([emulated(weight, row[None])[0] for row in x])
    for rows in ROWS:
        assert torch.equal(emulated(weight, x[-rows:])[0], alone[-rows:])


@STORED
def test_what_is_not_finite_stays_in_its_row(emulated: Run, stored: torch.dtype) -> None:
    weight, x = weights(PANEL, 49, stored), randn(40, 49, seed=1).to(BF16)
    whole, _ = emulated(weight, x)
    x[3], x[39, 48] = float("nan"), float("inf")
    y, _ = emulated(weight, x)
    kept = [row for row in range(40) if row not in (3, 39)]
    assert torch.equal(y[kept], whole[kept])
    assert y[3].isnan().all()
    assert not y[39][weight[:, 48] != 0].isfinite().any()


@STORED
def test_only_a_rows_own_numbers_are_read(emulated: Run, stored: torch.dtype) -> None:
    """Rows of x may lie apart, and what lies between them is no number."""
    weight, apart = weights(PANEL, 45, stored), torch.full((34, 64), float("nan"), dtype=BF16)
    x = randn(34, 45, seed=1).to(BF16)
    apart[:, :45] = x
    assert torch.equal(emulated(weight, apart[:, :45])[0], emulated(weight, x)[0])


@STORED
@pytest.mark.parametrize(
    ("rows", "tiles"),
    [(1, 2), (16, 2), (17, 4), (32, 4), (33, 6), (64, 8)],
)
def test_no_more_tiles_than_it_takes(emulated: Run, stored: torch.dtype, rows: int, tiles: int) -> None:
    """For each panel and 32 k: two tiles of columns for each 16 rows begun."""
    _, taken = emulated(weights(3 * PANEL, 70, stored), randn(rows, 70).to(BF16))
    assert taken == tiles * 3 * 3


def test_tiles_are_asked_for_beside_all_that_vectors_of_bfloat16_need() -> None:
    needed, flags = build.INSTRUCTION_SETS["amx_bf16"]
    vectors, vector_flags = build.INSTRUCTION_SETS["avx512_bf16"]
    assert set(needed) - set(vectors) == {"amx_tile", "amx_bf16"}
    assert set(flags) - set(vector_flags) == {"-mamx-tile", "-mamx-bf16"}
    assert list(build.INSTRUCTION_SETS)[-1] == "amx_bf16"


def test_a_processor_without_tiles_is_given_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library for tiles is not even opened there."""
    opened: list[str] = []
    monkeypatch.delenv("PAGEMILL_NATIVE", raising=False)
    monkeypatch.setattr(build, "library", lambda name: tmp_path / name)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: opened.append(Path(path).name))
    monkeypatch.setattr(functions, "declare", lambda _: None)
    needed, _ = build.INSTRUCTION_SETS["amx_bf16"]
    for name in build.INSTRUCTION_SETS:
        (tmp_path / name).touch()
    for missing, expected in (("amx_bf16", "avx512_bf16"), ("amx_tile", "avx512_bf16"), (None, "amx_bf16")):
        flags = frozenset(needed) - {missing}
        monkeypatch.setattr(library, "processor_flags", lambda flags=flags: flags)
        library.load.__wrapped__()
        assert opened.pop() == expected


def test_where_the_kernel_refuses_tiles_vectors_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without tiles is refused them, so there the library for tiles must give what vectors give."""
    flags, (vectors, _) = library.processor_flags(), build.INSTRUCTION_SETS["avx512_bf16"]
    if not flags.issuperset(vectors) or "amx_tile" in flags:
        pytest.skip("needs a processor with avx512_bf16 and without amx_tile")
    if not all(build.library(name).exists() for name in ("avx512_bf16", "amx_bf16")):
        pytest.skip("the native kernels are not built (make native)")
    monkeypatch.setattr(library, "processor_flags", lambda: flags | {"amx_tile", "amx_bf16"})
    products = []
    try:
        for name in ("avx512_bf16", "amx_bf16"):
            monkeypatch.setenv("PAGEMILL_NATIVE", name)
            library.load.cache_clear()
            loaded = library.loaded()
            assert name in loaded._name
            assert loaded.pm_isa() == b"avx512_bf16"
            matrix = Matrix(randn(130, 77), None, I8, BF16)
            products.append(matrix.linear(Pool(2), randn(70, 77, seed=1)))
    finally:
        library.load.cache_clear()
    assert torch.equal(*products)


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from use_instruction_set("amx_bf16", monkeypatch)


@STORED
@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("inputs", [32, 77, 576])
def test_the_instructions_give_the_product(stored: torch.dtype, inputs: int) -> None:
    matrix = Matrix(randn(130, inputs), None, stored, BF16)
    weight = torch.stack([matrix.row(output) for output in range(130)]).double()
    for rows in ROWS:
        x = randn(rows, inputs, seed=1)
        y, rounded = matrix.linear(Pool(2), x), x.to(BF16).double()
        magnitude = rounded.abs() @ weight.abs().T
        assert ((y - rounded @ weight.T).abs() <= magnitude * 2**-24 * (4 + 2 * inputs**0.5)).all()


@pytest.mark.usefixtures("tiles")
def test_whoever_else_computes_with_tiles_finds_them_as_they_were() -> None:
    """torch's own products of bfloat16 keep shapes of tiles from one call to the next."""
    a, b = randn(64, 96).to(BF16), randn(96, 64, seed=1).to(BF16)
    matrix, x = Matrix(randn(64, 96), None, BF16, BF16), randn(33, 96)
    theirs, ours = a @ b, matrix.linear(Pool(1), x)
    for _ in range(3):
        assert torch.equal(matrix.linear(Pool(1), x), ours)
        assert torch.equal(a @ b, theirs)
