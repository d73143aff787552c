"""The torch backend against its specification, and its promise: a token's result does not depend on the step it is computed in."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from pagemill_kernels import reference
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.interface import AttentionMetadata, LayerAttention
from pagemill_server.model.kv_pool import KVPool

HEADS = {"mha": (4, 4), "gqa": (9, 3), "mqa": (4, 1)}
BLOCK_SIZES = [1, 7, 16, 24, 128, 512]
# Shorter than a span, a span's and a tile's length and one beside them, several tiles, more than any sequence here.
WINDOWS = [1, 5, 63, 64, 65, 100, 256, 257, 300, 5000]


class Cache:
    """One layer's pool, with sequences in shuffled blocks."""

    def __init__(
        self,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        tokens: int = 3200,
        layers: tuple[LayerAttention, ...] = (LayerAttention(),),
    ) -> None:
        num_blocks = tokens // block_size + 20
        pool = KVPool(len(layers), kv_heads, head_dim, num_blocks, block_size, torch.float32, torch.device("cpu"))
        self.pool, self.backend = pool, TorchAttention(pool, layers)
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(0).shuffle(self.free)

    def blocks(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // self.block_size))]

    def metadata(self, chunks: list[tuple[list[int], int, int]]) -> AttentionMetadata:
        """Chunks of (block table, first position, tokens)."""
        width = max(len(table) for table, _, _ in chunks)
        slots, starts = [], [0]
        for table, first, count in chunks:
            slots += [
                table[p // self.block_size] * self.block_size + p % self.block_size for p in range(first, first + count)
            ]
            starts.append(starts[-1] + count)
        return AttentionMetadata(
            torch.tensor(slots),
            tuple(starts),
            tuple(first + count for _, first, count in chunks),
            torch.tensor([table + [0] * (width - len(table)) for table, _, _ in chunks]),
            self.block_size,
        )


def random_qkv(
    tokens: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return tuple(torch.randn(tokens, n, head_dim, generator=generator) for n in (heads, kv_heads, kv_heads))  # type: ignore[return-value]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_mixed_step_equals_the_reference(heads: tuple[int, int], block_size: int, kind: LayerAttention) -> None:
    """Prefill from the start, a chunk that begins in the middle of a block, and single tokens, some beyond a tile, in one step."""
    cache = Cache(heads[1], 32, block_size, layers=(kind,))
    histories, counts = [0, 21, 63, 300, 257, 40, 510], [70, 9, 1, 1, 1, 1, 130]
    tables = [cache.blocks(history + count) for history, count in zip(histories, counts, strict=True)]
    keys, values = cache.pool.keys[0], cache.pool.values[0]
    past = [(table, 0, history) for table, history in zip(tables, histories, strict=True) if history]
    query, key, value = random_qkv(sum(histories), heads[0], heads[1], 32)
    cache.backend.begin(cache.metadata(past))(query, key, value, 0)

    metadata = cache.metadata(list(zip(tables, histories, counts, strict=True)))
    query, key, value = random_qkv(sum(counts), heads[0], heads[1], 32)
    expected_keys, expected_values = keys.clone(), values.clone()
    reference.write_kv(expected_keys, expected_values, key, value, metadata.slot_mapping)
    expected = reference.paged_attention(
        query,
        expected_keys,
        expected_values,
        metadata.block_tables,
        metadata.seq_lens,
        metadata.query_start,
        kind.window,
        kind.scale,
    )
    out = cache.backend.begin(metadata)(query, key, value, 0)
    assert torch.equal(keys, expected_keys)
    assert torch.equal(values, expected_values)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_equals_the_reference_for_a_mixed_step(heads: tuple[int, int], block_size: int) -> None:
    assert_mixed_step_equals_the_reference(heads, block_size, LayerAttention())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block_size", [16, 24])
def test_a_window_equals_the_reference(window: int, block_size: int) -> None:
    assert_mixed_step_equals_the_reference((4, 2), block_size, LayerAttention(window))


def test_a_scale_equals_the_reference() -> None:
    assert_mixed_step_equals_the_reference((4, 2), 16, LayerAttention(scale=0.07))


def assert_chunks_are_the_same_bits(
    heads: tuple[int, int], block_size: int, window: int | None, length: int = 800
) -> None:
    cache = Cache(heads[1], 16, block_size, layers=(LayerAttention(window),))
    query, key, value = random_qkv(length, heads[0], heads[1], 16)
    table = cache.blocks(length)
    whole = cache.backend.begin(cache.metadata([(table, 0, length)]))(query, key, value, 0)
    other = cache.blocks(length)
    first, rng = 0, random.Random(0)
    while first < length:
        count = min(rng.choice([1, 1, 2, 30, 64, 90]), length - first)
        rows = slice(first, first + count)
        part = cache.backend.begin(cache.metadata([(other, first, count)]))(query[rows], key[rows], value[rows], 0)
        assert torch.equal(part, whole[rows]), f"tokens {first} to {first + count}"
        first += count


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("block_size", [16, 7])
def test_a_long_sequence_in_chunks_is_the_same_bits_as_at_once(heads: tuple[int, int], block_size: int) -> None:
    assert_chunks_are_the_same_bits(heads, block_size, None)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_in_chunks_is_the_same_bits_as_at_once(window: int) -> None:
    assert_chunks_are_the_same_bits((4, 2), 16, window)


@pytest.mark.parametrize("window", [None, 100])
def test_the_block_size_makes_no_difference_to_a_bit(window: int | None) -> None:
    outs = []
    for block_size in BLOCK_SIZES:
        cache = Cache(2, 16, block_size, layers=(LayerAttention(window),))
        query, key, value = random_qkv(400, 4, 2, 16)
        outs.append(cache.backend.begin(cache.metadata([(cache.blocks(400), 0, 400)]))(query, key, value, 0))
    assert all(torch.equal(out, outs[0]) for out in outs[1:])


def test_a_sequence_reads_blocks_that_another_writes_in_the_same_step() -> None:
    """Siblings of one request: the second begins where the first's full blocks end, and has these in its table."""
    cache = Cache(2, 16, 16)
    query, key, value = random_qkv(70, 4, 2, 16)
    leader = cache.blocks(70)
    sibling = leader[:4] + cache.blocks(1)
    step = [(sibling, 64, 6), (leader, 0, 70)]
    rows = [*range(64, 70), *range(70)]
    together = cache.backend.begin(cache.metadata(step))(query[rows], key[rows], value[rows], 0)
    alone = Cache(2, 16, 16)
    expected = alone.backend.begin(alone.metadata([(alone.blocks(70), 0, 70)]))(query, key, value, 0)
    assert torch.equal(together, expected[rows])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("window", [None, 5, 64, 300])
def test_single_tokens_are_the_same_bits_alone_and_together(window: int | None) -> None:
    cache = Cache(3, 16, 16, layers=(LayerAttention(window),))
    lengths = [1, 64, 65, 256, 257, 600, 63]
    query, key, value = random_qkv(sum(lengths), 9, 3, 16)
    tables = [cache.blocks(length) for length in lengths]
    past = [(table, 0, length - 1) for table, length in zip(tables, lengths, strict=True) if length > 1]
    rows = sum(count for _, _, count in past)
    cache.backend.begin(cache.metadata(past))(query[:rows], key[:rows], value[:rows], 0)
    query, key, value = random_qkv(len(lengths), 9, 3, 16)
    step = [(table, length - 1, 1) for table, length in zip(tables, lengths, strict=True)]
    together = cache.backend.begin(cache.metadata(step))(query, key, value, 0)
    for index, entry in enumerate(step):
        row = slice(index, index + 1)
        alone = cache.backend.begin(cache.metadata([entry]))(query[row], key[row], value[row], 0)
        assert torch.equal(alone, together[row])


@pytest.mark.parametrize("length", [1, 20, 33, 300])
def test_what_an_earlier_sequence_left_in_a_block_is_never_seen(length: int) -> None:
    """A sequence whose numbers ran away leaves NaN in its blocks; the next owner of the blocks must not read them."""
    cache = Cache(2, 16, 32, tokens=0)
    nan = torch.full((640, 2, 16), float("nan"))
    everything = list(range(20))
    cache.backend.begin(cache.metadata([(everything, 0, 640)]))(nan.repeat(1, 2, 1), nan, nan, 0)
    table = cache.blocks(length)
    query, key, value = random_qkv(length, 4, 2, 16)
    out = cache.backend.begin(cache.metadata([(table, 0, length)]))(query, key, value, 0)
    fresh = Cache(2, 16, 32, tokens=0)
    assert torch.equal(out, fresh.backend.begin(fresh.metadata([(table, 0, length)]))(query, key, value, 0))
    assert not cache.pool.keys[0][:, cache.pool.null_block].any()


def test_layers_do_not_share_their_cache() -> None:
    cache = Cache(2, 16, 16, layers=(LayerAttention(), LayerAttention()))
    table = cache.blocks(10)
    query, key, value = random_qkv(10, 4, 2, 16)
    attend = cache.backend.begin(cache.metadata([(table, 0, 10)]))
    first = attend(query, key, value, 0)
    second = attend(query, key * 2, value, 1)
    assert not torch.equal(first, second)
    assert torch.equal(cache.pool.keys[1], cache.pool.keys[0] * 2)


def test_each_layer_has_its_own_window_and_scale() -> None:
    kinds = (LayerAttention(), LayerAttention(20), LayerAttention(scale=1.0), LayerAttention(20, 1.0))
    cache = Cache(2, 16, 16, layers=kinds)
    table = cache.blocks(50)
    query, key, value = random_qkv(50, 4, 2, 16)
    attend = cache.backend.begin(cache.metadata([(table, 0, 50)]))
    for layer, kind in enumerate(kinds):
        alone = Cache(2, 16, 16, layers=(kind,))
        expected = alone.backend.begin(alone.metadata([(alone.blocks(50), 0, 50)]))(query, key, value, 0)
        assert torch.equal(attend(query, key, value, layer), expected)
