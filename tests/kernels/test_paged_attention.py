"""Paged attention's kernels against their twin. What must not be read is NaN, and so is the output before."""

from __future__ import annotations

import pytest
import torch

from pagemill_kernels import reference
from tests.kernels.paged import Step, step
from tests.kernels.where import EVERYWHERE, ON_A_GPU, Kernels, assert_near, random

pytest.importorskip("triton", reason="needs triton: PyPI's torch brings it, the CPU wheel does not")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def decoded(kernels: Kernels, case: Step, **kwargs: object) -> torch.Tensor:
    found = kernels.call("paged_attention.decode", case.query, *case.cache, case.seq_lens, window=case.window, **kwargs)
    return found[0]  # type: ignore[no-any-return]


def chunked(kernels: Kernels, case: Step, **kwargs: object) -> torch.Tensor:
    lens = case.query_start, case.seq_lens
    found = kernels.call("paged_attention.chunks", case.query, *case.cache, *lens, window=case.window, **kwargs)
    return found[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_decode(kernels: Kernels, dtype: torch.dtype, block_size: int, group: int) -> None:
    """One token, a whole block and one more, and lengths that are split unevenly."""
    case = step([1, 65, 200], [1, 1, 1], group=group, block_size=block_size, dtype=dtype)
    assert_near(decoded(kernels, case), case.expected())


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("window", [1, 7, 32, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_sees_the_window_alone(kernels: Kernels, dtype: torch.dtype, window: int) -> None:
    case = step([3, 100, 201], [1, 1, 1], window=window, dtype=dtype)
    assert_near(decoded(kernels, case), case.expected())


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("lens", [[0, 40, 0, 1], [0, 200, 0, 1], [0, 0]])
def test_decode_gives_padding_rows_zeros(kernels: Kernels, lens: list[int]) -> None:
    case = step(lens, [1] * len(lens), spare_blocks=3)
    found = decoded(kernels, case)
    assert_near(found, case.expected())
    assert not found[case.seq_lens == 0].any()


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("head_dim", [20, 80, 128])
def test_decode_of_any_head_dim_and_scale(kernels: Kernels, head_dim: int) -> None:
    case = step([150, 17], [1, 1], head_dim=head_dim, kv_heads=1)
    assert_near(decoded(kernels, case, scale=0.3), case.expected(scale=0.3))


@pytest.mark.parametrize("kernels", EVERYWHERE)
def test_decode_writes_where_it_is_told(kernels: Kernels) -> None:
    """Into a part of wider rows, with a workspace of its own; nothing beside them is touched."""
    case = step([130, 5], [1, 1], kv_heads=1)
    wide = torch.full((2, 5, 64), float("nan"))
    workspace = torch.full((2 * 3 * 2 * 65,), float("nan"))  # two splits
    result, _, after = kernels.call(
        "paged_attention.decode", case.query, *case.cache, case.seq_lens, out=wide[:, 1:4], workspace=workspace
    )
    assert_near(result, case.expected())
    assert_near(after["out"], case.expected())


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_chunks(kernels: Kernels, dtype: torch.dtype, block_size: int, group: int) -> None:
    """A prompt's beginning, a chunk with what came before it, no token at all, and a single one."""
    case = step([13, 75, 30, 40], [13, 20, 0, 1], group=group, block_size=block_size, dtype=dtype, kv_heads=1)
    assert_near(chunked(kernels, case), case.expected())


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("window", [1, 7, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_see_the_window_alone(kernels: Kernels, dtype: torch.dtype, window: int) -> None:
    case = step([50, 90], [50, 9], window=window, dtype=dtype, kv_heads=1)
    assert_near(chunked(kernels, case), case.expected())


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("chunks", [[1, 1, 1], [0, 0, 5], [5, 0, 0], [33], [1] * 9])
def test_every_chunk_finds_its_sequence(kernels: Kernels, chunks: list[int]) -> None:
    case = step([40] * len(chunks), chunks, kv_heads=1, head_dim=32)
    assert_near(chunked(kernels, case, scale=0.3), case.expected(scale=0.3))


@pytest.mark.parametrize("kernels", EVERYWHERE)
def test_rows_that_are_no_sequences_are_left_as_they_are(kernels: Kernels) -> None:
    case = step([20], [5], kv_heads=1)
    query, out = torch.cat((case.query, case.query)), torch.full((10, 3, 64), -3.0)
    lens = case.query_start, case.seq_lens
    found = kernels.call("paged_attention.chunks", query, *case.cache, *lens, out=out)[0]
    assert_near(found[:5], case.expected())
    assert (found[5:] == -3.0).all()


@pytest.mark.parametrize("kernels", EVERYWHERE)
def test_chunks_of_one_token_are_what_decode_says(kernels: Kernels) -> None:
    case = step([1, 70, 129], [1, 1, 1], dtype=torch.bfloat16)
    assert_near(chunked(kernels, case), decoded(kernels, case))


def test_the_twin_gives_padding_rows_zeros() -> None:
    case = step([0, 4], [2, 1])
    assert not case.expected()[:2].any()
    assert case.expected()[2].any()


def test_the_twin_leaves_a_slot_of_minus_one_out() -> None:
    cache = torch.zeros(1, 2, 4, 8)
    new = torch.ones(2, 1, 8)
    reference.write_kv(cache, cache, new, new, torch.tensor([-1, 1]))
    assert cache.sum() == 8
    assert cache[0, 0, 1].sum() == 8


@pytest.mark.parametrize("kernels", ON_A_GPU)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim", "block_size"), [(32, 1, 128, 16), (8, 4, 128, 32), (3, 3, 64, 16)]
)
@pytest.mark.parametrize("window", [None, 1000])
def test_real_sizes(
    kernels: Kernels, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int, block_size: int, window: int | None
) -> None:
    sizes = {"kv_heads": kv_heads, "group": group, "head_dim": head_dim, "block_size": block_size}
    single = step([4000, 1, 0, 777], [1, 1, 1, 1], dtype=dtype, window=window, **sizes)
    assert_near(decoded(kernels, single), single.expected())
    several = step([2500, 1, 300, 64], [100, 1, 33, 64], dtype=dtype, window=window, **sizes)
    assert_near(chunked(kernels, several), several.expected())


@pytest.mark.gpu
def test_a_captured_graph_serves_other_lengths() -> None:
    from pagemill_kernels.paged_attention import decode, decode_workspace

    case = step([300, 17, 1], [1, 1, 1], dtype=torch.bfloat16)
    query, keys, values, tables, lens = (t.cuda() for t in (case.query, *case.cache, case.seq_lens))
    out = torch.empty_like(query)
    workspace = torch.empty(decode_workspace(query, keys, tables), device="cuda")
    decode(query, keys, values, tables, lens, out=out, workspace=workspace)  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(query, keys, values, tables, lens, out=out, workspace=workspace)
    for shorter in ([300, 17, 1], [200, 3, 0], [1, 16, 1]):
        lens.copy_(torch.tensor(shorter))
        out.fill_(float("nan"))
        graph.replay()
        expected = reference.paged_attention(case.query, *case.cache, shorter, [0, 1, 2, 3])
        assert_near(out.cpu(), expected)


@pytest.mark.gpu
def test_a_cache_of_more_than_2_to_the_31_elements() -> None:
    """Places beyond 32 bits are written and read. Takes 5 GB of the device."""
    from pagemill_kernels.paged_attention import chunks, decode
    from pagemill_kernels.write_kv import write_kv

    block_size, head_dim, blocks = 16, 128, 2**20 + 8
    cache = torch.empty(1, blocks, block_size, head_dim, dtype=torch.bfloat16, device="cuda")
    new = random(40, 1, head_dim, dtype=torch.bfloat16).cuda()
    tables = torch.tensor([[blocks - 1, blocks - 3, blocks - 2]], dtype=torch.int32, device="cuda")
    places = torch.arange(40, device="cuda")
    slots = tables[0].long()[places // block_size] * block_size + places % block_size
    write_kv(cache, cache, new, new, slots)
    query, lens = random(1, 4, head_dim, dtype=torch.bfloat16, seed=1), torch.tensor([40], dtype=torch.int32)
    near = cache[:, -3:].cpu()  # the same blocks, at places that a small cache has
    expected = reference.paged_attention(query, near, near, torch.tensor([[2, 0, 1]]), [40], [0, 1])
    assert_near(decode(query.cuda(), cache, cache, tables, lens.cuda()).cpu(), expected)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    assert_near(chunks(query.cuda(), cache, cache, tables, starts.cuda(), lens.cuda()).cpu(), expected)
