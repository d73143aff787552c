"""Native attention against the specification, and its promise: a query's bits follow from its position and keys alone."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from pagemill_kernels import reference
from pagemill_kernels.native import functions, library
from pagemill_kernels.native.attention import attend, step_layout
from pagemill_kernels.native.matrix import Pool
from tests.kernels.emulating import compile_emulated
from tests.kernels.native_libraries import INSTRUCTION_SETS, pool, use_instruction_set

BOUND = 2e-5  # where vectors compute, float32 and bfloat16 caches alike: both are read exactly, and values are about 1
BF16 = torch.bfloat16
EMULATED = "emulated tiles"
LOG2_E = 1.44269504
BY_TILES = ("amx_bf16", EMULATED)  # over caches of bfloat16


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's attention with tiles of plain C++."""
    sources = ("attention.cpp", "attention_calls.cpp", "attention_plan.cpp", "pool.cpp")
    return compile_emulated(tmp_path_factory.mktemp("attention"), "emulated_attention.cpp", sources, "avx2")


@pytest.fixture(params=[*INSTRUCTION_SETS, EMULATED], autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == EMULATED:
        library_of_it = ctypes.CDLL(str(request.getfixturevalue("emulated")))
        functions.declare(library_of_it, ("pm_pool_new", "pm_pool_free", "pm_attention"))
        monkeypatch.setenv("PAGEMILL_NATIVE", EMULATED)
        monkeypatch.setattr(library, "load", lambda: library_of_it)
        yield EMULATED
        return
    for _ in use_instruction_set(request.param, monkeypatch):
        yield request.param


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    window: int | None = None
    scale: float | None = None
    dtype: torch.dtype = torch.float32


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Sequences:
    """Random queries, keys and values of whole sequences, and what attention makes of them."""

    def __init__(self, shape: Shape, lengths: Sequence[int]) -> None:
        self.shape, self.lengths = shape, tuple(lengths)
        sizes = (shape.heads, shape.kv_heads, shape.kv_heads)
        self.parts = [
            [randn(length, size, shape.head_dim, seed=10 * index + part) for part, size in enumerate(sizes)]
            for index, length in enumerate(lengths)
        ]

    def through(
        self,
        over: Pool,
        *,
        block_size: int = 16,
        chunks: Sequence[int] | None = None,
        only: int | None = None,
        by_block: bool = False,
    ) -> list[torch.Tensor]:
        """[length, heads, head_dim] a sequence, computed in chunks over a cache whose slots begin as NaN, in shuffled blocks.

        `chunks`: tokens of a step, one number a sequence; None: all at once. `only`: that sequence alone. `by_block`: in the
        cache's memory blocks come before heads.
        """
        chosen = range(len(self.lengths)) if only is None else [only]
        blocks = {index: -(-self.lengths[index] // block_size) for index in chosen}
        keys, values = self._caches(sum(blocks.values()) + 1, block_size, by_block)
        free = random.Random(0).sample(range(keys.shape[1]), keys.shape[1])
        tables = {index: torch.tensor([free.pop() for _ in range(count)]) for index, count in blocks.items()}
        outs: dict[int, list[torch.Tensor]] = {index: [] for index in chosen}
        done = dict.fromkeys(chosen, 0)
        while active := [index for index in chosen if done[index] < self.lengths[index]]:
            steps = {}
            for index in active:
                most = self.lengths[index] if chunks is None else chunks[index]
                steps[index] = slice(done[index], min(self.lengths[index], done[index] + most))
                done[index] = steps[index].stop
            rows = _attend(self, over, steps, tables, keys, values)
            for index, row in zip(active, rows, strict=True):
                outs[index].append(row)
        return [torch.cat(outs[index]) for index in chosen]

    def expected(self) -> list[torch.Tensor]:
        """By the specification, over keys and values as the cache keeps them."""
        found = []
        for length, (query, key, value) in zip(self.lengths, self.parts, strict=True):
            keys, values = (part.to(self.shape.dtype).transpose(0, 1)[:, None].contiguous() for part in (key, value))
            table = torch.zeros((1, 1), dtype=torch.int64)
            scale, window = self.shape.scale, self.shape.window
            found.append(reference.paged_attention(query, keys, values, table, [length], [0, length], window, scale))
        return found

    def _caches(self, blocks: int, block_size: int, by_block: bool) -> tuple[torch.Tensor, torch.Tensor]:
        heads, block = self.shape.kv_heads, (block_size, self.shape.head_dim)
        shape = (blocks, 2, heads, *block) if by_block else (2, heads, blocks, *block)
        data = torch.full(shape, float("nan"), dtype=self.shape.dtype)
        keys, values = data.permute(1, 2, 0, 3, 4) if by_block else data
        return keys, values


def _attend(
    sequences: Sequences,
    over: Pool,
    steps: dict[int, slice],
    tables: dict[int, torch.Tensor],
    keys: torch.Tensor,
    values: torch.Tensor,
) -> list[torch.Tensor]:
    block_size, counts = keys.shape[2], [step.stop - step.start for step in steps.values()]
    query, key, value = (
        torch.cat([sequences.parts[index][part][step] for index, step in steps.items()]) for part in range(3)
    )
    slots, starts = [], [0]
    for index, step in steps.items():
        positions = torch.arange(step.start, step.stop)
        slots.append(tables[index][positions // block_size] * block_size + positions % block_size)
        starts.append(starts[-1] + len(positions))
    padded = torch.nn.utils.rnn.pad_sequence([tables[index] for index in steps], batch_first=True)
    layout = step_layout(torch.cat(slots), starts, [step.stop for step in steps.values()], padded.contiguous())
    shape = sequences.shape
    out = attend(over, layout, keys, values, query, key, value, shape.window, shape.scale)
    return list(torch.split(out, counts))


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=BOUND)


def check_by_tiles(sequences: Sequences, ours: list[torch.Tensor]) -> None:
    """With queries as they are rounded. Weights keep 8 bits: an output is off by 2^-9 of what it is made of at most; twice that."""
    shape, rounded = sequences.shape, Sequences(sequences.shape, sequences.lengths)
    scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
    factor = torch.tensor(scale, dtype=torch.float32) * torch.tensor(LOG2_E, dtype=torch.float32)
    rounded.shape = replace(shape, scale=math.log(2))
    rounded.parts = [[(query * factor).bfloat16().float(), key, value] for query, key, value in sequences.parts]
    exact = rounded.expected()
    rounded.parts = [[query, key, value.abs()] for query, key, value in rounded.parts]
    for one, other, magnitude in zip(ours, exact, rounded.expected(), strict=True):
        assert ((one - other).abs() <= magnitude * 2**-8).all()


def assert_same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


LENGTHS = (1, 5, 63, 64, 65, 130)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 40, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 32), (6, 2, 80), (2, 1, 256)]
)
def test_it_is_the_specification(
    instruction_set: str, heads: int, kv_heads: int, head_dim: int, window: int | None, dtype: torch.dtype
) -> None:
    sequences = Sequences(Shape(heads, kv_heads, head_dim, window, None, dtype), (1, 64, 130))
    found = sequences.through(pool(1))
    if dtype is BF16 and instruction_set in BY_TILES:
        check_by_tiles(sequences, found)
    else:
        assert_close(found, sequences.expected())


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 32), (9, 1, 80)])
@pytest.mark.parametrize("block_size", [1, 7, 16, 24, 32, 256])
@pytest.mark.parametrize("window", [None, 40])
def test_a_querys_bits_follow_from_its_keys_alone(
    block_size: int, window: int | None, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Not from blocks, chunks, company or threads, and nothing that was not written is read."""
    sequences = Sequences(Shape(heads, kv_heads, head_dim, window, None, dtype), LENGTHS)
    whole = sequences.through(pool(1))
    draw = random.Random(block_size)
    for threads in (1, 2, 3):
        chunks = [draw.choice((1, 2, 7, 33, 64, 100)) for _ in LENGTHS]
        assert_same_bits(sequences.through(pool(threads), block_size=block_size, chunks=chunks), whole)
    alone = [sequences.through(pool(2), block_size=block_size, only=index)[0] for index in range(len(LENGTHS))]
    assert_same_bits(alone, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_a_caches_blocks_lie_changes_nothing(dtype: torch.dtype) -> None:
    sequences = Sequences(Shape(6, 2, 32, dtype=dtype), LENGTHS)
    chunks = [33] * len(LENGTHS)
    by_block = sequences.through(pool(2), block_size=24, chunks=chunks, by_block=True)
    assert_same_bits(by_block, sequences.through(pool(2), block_size=24, chunks=chunks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "block_size"),
    [(1, 1, 16), (4, 2, 32), (6, 2, 64), (8, 2, 16), (5, 1, 7), (6, 1, 32), (7, 1, 24)],
)
def test_few_rows_have_the_bits_of_many(
    heads: int, kv_heads: int, block_size: int, window: int | None, dtype: torch.dtype
) -> None:
    """A single token, or a few, read keys and values where they lie in the cache; a prompt's tokens read a copy."""
    sequences = Sequences(Shape(heads, kv_heads, 80, window, None, dtype), (140,))
    whole = sequences.through(pool(1))
    for chunk in (1, 2, 11):
        assert_same_bits(sequences.through(pool(1), block_size=block_size, chunks=[chunk]), whole)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("window", [None, 1500])
def test_long_contexts_are_split_over_threads_without_a_change(
    instruction_set: str, window: int | None, dtype: torch.dtype
) -> None:
    sequences = Sequences(Shape(2, 1, 16, window, 0.3, dtype), (2600,))
    whole = sequences.through(pool(1))
    for threads, chunk in ((2, 2599), (3, 2000), (1, 1300)):  # the last step is one token, several spans, and both
        assert_same_bits(sequences.through(pool(threads), block_size=24, chunks=[chunk]), whole)
    if dtype is BF16 and instruction_set in BY_TILES:
        check_by_tiles(sequences, whole)
        return
    keys, values = (part.to(dtype).float() for part in sequences.parts[0][1:])
    for position in (0, 1023, 1024, 1500, 2047, 2599):
        first = 0 if window is None else max(0, position + 1 - window)
        for head in range(2):
            scores = keys[first : position + 1, 0] @ sequences.parts[0][0][position, head] * 0.3
            expected = scores.softmax(0) @ values[first : position + 1, 0]
            torch.testing.assert_close(whole[0][position, head], expected, rtol=0, atol=BOUND)


def test_many_query_heads_may_share_a_key() -> None:
    sequences = Sequences(Shape(100, 1, 16), (3, 40))
    assert_close(sequences.through(pool(2)), sequences.expected())


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("length", [70, 1100])
def test_a_later_tokens_nan_stays_its_own(length: int, dtype: torch.dtype) -> None:
    """In its values too, which tiles multiply by nothing for rows that do not see it; 1,100 keys are several spans."""
    sequences = Sequences(Shape(dtype=dtype), (length,))
    clean = sequences.through(pool(2))[0]
    bad = length - 4
    sequences.parts[0][1][bad] = sequences.parts[0][2][bad] = float("nan")
    sequences.parts[0][2][bad + 2] = float("inf")
    for chunk in (length, 66):
        poisoned = sequences.through(pool(2), chunks=[chunk])[0]
        assert torch.equal(poisoned[:bad], clean[:bad])
        assert poisoned[bad:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_an_earlier_tokens_nan_is_left_behind_by_a_window(dtype: torch.dtype) -> None:
    sequences = Sequences(Shape(window=20, dtype=dtype), (130,))
    clean = sequences.through(pool(1))[0]
    sequences.parts[0][2][66] = float("nan")
    poisoned = sequences.through(pool(1))[0]
    assert torch.equal(poisoned[:66], clean[:66])
    assert poisoned[66:86].isnan().all()
    assert torch.equal(poisoned[86:], clean[86:])


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_scores_that_overflow_are_no_harm(instruction_set: str, dtype: torch.dtype) -> None:
    sequences = Sequences(Shape(scale=1e4, dtype=dtype), (130,))
    out = sequences.through(pool(1))
    if dtype is BF16 and instruction_set in BY_TILES:
        check_by_tiles(sequences, out)
    else:
        assert_close(out, sequences.expected())


def test_what_does_not_fit_is_refused() -> None:
    layout = step_layout(torch.zeros(1, dtype=torch.int64), [0, 1], [1], torch.zeros((1, 1), dtype=torch.int64))
    keys, values = torch.zeros(2, 2, 1, 4, 16)
    query, new = torch.zeros(1, 4, 16), torch.zeros(1, 2, 16)
    one = pool(1)
    assert attend(one, layout, keys, values, query, new, new).shape == query.shape
    with pytest.raises(ValueError, match="head_dim 24"):
        attend(one, layout, keys, values, torch.zeros(1, 4, 24), new, new)
    with pytest.raises(ValueError, match="do not divide"):
        attend(one, layout, keys, values, torch.zeros(1, 3, 16), new, new)
    with pytest.raises(ValueError, match="query is torch"):
        attend(one, layout, keys, values, query.double(), new, new)
    with pytest.raises(ValueError, match="key is not contiguous"):
        attend(one, layout, keys, values, query, torch.zeros(1, 16, 2).transpose(1, 2), new)
    with pytest.raises(ValueError, match="float16"):
        attend(one, layout, keys.half(), values.half(), query, new, new)
    with pytest.raises(ValueError, match="cache is not contiguous"):
        attend(one, layout, *torch.zeros(2, 2, 1, 16, 4).transpose(3, 4), query, new, new)
    with pytest.raises(ValueError, match="laid out differently"):
        attend(one, layout, keys, torch.zeros(1, 2, 4, 16).transpose(0, 1), query, new, new)
    with pytest.raises(ValueError, match="a window of 0"):
        attend(one, layout, keys, values, query, new, new, window=0)
    with pytest.raises(ValueError, match="3 entries"):
        step_layout(torch.zeros(1, dtype=torch.int64), [0, 1, 1], [1], torch.zeros((1, 1), dtype=torch.int64))
