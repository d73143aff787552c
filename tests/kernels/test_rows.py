"""Norms, rotation, SwiGLU and the cache's writing against their twins, with odd sizes and rows that are views of wider ones."""

from __future__ import annotations

import pytest
import torch

from pagemill_kernels import reference
from tests.kernels.where import EVERYWHERE, ON_A_GPU, Kernels, assert_near, random

pytest.importorskip("triton", reason="needs triton: PyPI's torch brings it, the CPU wheel does not")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (5, 100), (3, 576), (33, 7), (0, 64)])
def test_rms_norm(kernels: Kernels, dtype: torch.dtype, rows: int, size: int) -> None:
    x, weight = random(rows, size + 3, dtype=dtype)[:, :size], random(size, dtype=dtype, seed=1)
    found = kernels.call("rms_norm.rms_norm", x, weight, 1e-5)[0]
    assert_near(found, reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_heads_that_are_part_of_a_wider_row(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = random(4, 9, 20, dtype=dtype)[:, 1:6], random(20, dtype=dtype, seed=1)
    found = kernels.call("rms_norm.rms_norm", x, weight, 1e-5)[0]
    assert_near(found, reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_wide_multiplies_before_it_rounds(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = random(6, 100, dtype=dtype), random(100, seed=1)
    found = kernels.call("rms_norm.rms_norm_wide", x, weight, 1e-5)[0]
    assert_near(found, reference.rms_norm_wide(x, weight, 1e-5))


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(5, 100), (2, 576), (0, 64)])
def test_add_rms_norm(kernels: Kernels, dtype: torch.dtype, rows: int, size: int) -> None:
    x, residual = random(rows, size, dtype=dtype), random(rows, size + 5, dtype=dtype, seed=2)[:, :size]
    weight = random(size, dtype=dtype, seed=1)
    normed, total = kernels.call("rms_norm.add_rms_norm", x, residual, weight, 1e-5)[0]
    expected, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total)
    assert_near(normed, expected)


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(3, 20), (12, 64), (1, 128)])
def test_rotary(kernels: Kernels, dtype: torch.dtype, heads: int, size: int) -> None:
    x = random(5, heads + 2, size, dtype=dtype)[:, :heads]
    cos, sin = random(5, size, dtype=dtype, seed=1), random(5, size, dtype=dtype, seed=2)
    found = kernels.call("rotary.rotary", x, cos, sin)[0]
    # The twin rounds each product; the kernel their sum alone.
    expected = reference.rotary(x.float(), cos.float(), sin.float()).to(dtype)
    assert_near(found, expected)


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(5, 50), (2, 3000), (0, 8)])
def test_swiglu(kernels: Kernels, dtype: torch.dtype, rows: int, size: int) -> None:
    gate_up = random(rows, 2 * size + 1, dtype=dtype)[:, : 2 * size] * 3
    found = kernels.call("swiglu.swiglu", gate_up)[0]
    assert_near(found, reference.swiglu(gate_up.float()).to(dtype))


@pytest.mark.parametrize("kernels", EVERYWHERE)
def test_swiglu_of_extremes(kernels: Kernels) -> None:
    extreme = torch.tensor([[-1e4, -100.0, 0.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    assert kernels.call("swiglu.swiglu", extreme)[0].tolist() == [[0.0, 0.0, 0.0, 1e4]]


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize(("heads", "size"), [(3, 20), (1, 64)])
def test_write_kv(kernels: Kernels, dtype: torch.dtype, block_size: int, heads: int, size: int) -> None:
    """Bits are copied, and nothing else is touched; a slot of -1 is left out."""
    wide = random(5, 2 * heads + 1, size, dtype=dtype)
    key, value = wide[:, :heads], wide[:, heads : 2 * heads]
    caches = [torch.full((heads, 7, block_size, size), float("nan"), dtype=dtype) for _ in range(2)]
    slots = torch.tensor([3, -1, block_size + 1, 7 * block_size - 1, 2 * block_size])
    _, (keys, values, *_), _ = kernels.call("write_kv.write_kv", *caches, key, value, slots)
    reference.write_kv(caches[0], caches[1], key, value, slots)
    for found, expected in ((keys, caches[0]), (values, caches[1])):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kernels", ON_A_GPU)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_real_models(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = random(333, 4096, dtype=dtype), random(4096, dtype=dtype, seed=1)
    assert_near(kernels.call("rms_norm.rms_norm", x, weight, 1e-5)[0], reference.rms_norm(x, weight, 1e-5))
    heads = random(333, 40, 128, dtype=dtype)
    cos, sin = random(333, 128, dtype=dtype, seed=1), random(333, 128, dtype=dtype, seed=2)
    expected = reference.rotary(heads.float(), cos.float(), sin.float()).to(dtype)
    assert_near(kernels.call("rotary.rotary", heads, cos, sin)[0], expected)
    gate_up = random(333, 2 * 12288, dtype=dtype)
    assert_near(kernels.call("swiglu.swiglu", gate_up)[0], reference.swiglu(gate_up.float()).to(dtype))
