"""The specification against independent ones: torch's scaled dot product attention, and transformers' norm, rotation and MLP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from pagemill_kernels import reference


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_transformers(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(64, eps=1e-3).to(dtype)
    norm.weight.data = randn(64, seed=1).to(dtype)
    x = randn(5, 64).to(dtype)
    with torch.no_grad():
        assert torch.equal(reference.rms_norm(x, norm.weight, 1e-3), norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_wide_is_gemmas(dtype: torch.dtype) -> None:
    norm = Gemma3RMSNorm(64, eps=1e-3).to(dtype)
    norm.weight.data = randn(64, seed=1).to(dtype)
    x = randn(5, 64).to(dtype)
    with torch.no_grad():
        assert torch.equal(reference.rms_norm_wide(x, 1.0 + norm.weight.float(), 1e-3), norm(x))


def test_rotary_is_transformers() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16)
    positions = torch.tensor([[0, 3, 200, 7]])
    x = randn(1, 5, 4, 16)  # [batch, heads, tokens, head_dim]
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    half = torch.cat((-torch.ones(8), torch.ones(8)))
    ours = reference.rotary(x[0].transpose(0, 1), cos[0], sin[0] * half)
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), rtol=0, atol=0)


def test_swiglu_gates_the_second_half_with_the_first() -> None:
    gate, up = randn(6, 40), randn(6, 40, seed=1)
    ours = reference.swiglu(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(ours, functional.silu(gate) * up, rtol=1e-6, atol=1e-6)
    extreme = torch.tensor([[-1e4, -100.0, 0.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    assert reference.swiglu(extreme).tolist() == [[0.0, 0.0, 0.0, 1e4]]


def test_geglu_is_torchs_gelu_with_the_tanh_approximation() -> None:
    gate, up = randn(6, 40) * 3, randn(6, 40, seed=1)
    ours = reference.geglu(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(ours, functional.gelu(gate, approximate="tanh") * up, rtol=1e-5, atol=1e-6)
    extreme = torch.tensor([[-1e4, -100.0, 0.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    assert reference.geglu(extreme).tolist() == [[0.0, 0.0, 0.0, 1e4]]
    assert reference.geglu(extreme.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("activation", [reference.swiglu, reference.geglu])
def test_rows_do_not_depend_on_how_threads_divide_the_work(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before = torch.get_num_threads()
    x = randn(601, 2 * 88)  # divided by two in the middle of a row, where a vector loop has a tail
    torch.set_num_threads(2)
    whole = activation(x)
    torch.set_num_threads(before)
    for row in range(601):
        assert torch.equal(activation(x[row : row + 1])[0], whole[row])


@pytest.mark.parametrize(("window", "scale"), [(None, None), (3, None), (None, 0.3), (1, 2.0), (40, None)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_paged_attention_is_attention_over_the_gathered_cache(
    kv_heads: int, window: int | None, scale: float | None
) -> None:
    """Two sequences: a chunk of 5 tokens that begins at position 6, and one token at position 0."""
    block_size, tables = 4, [[5, 2, 7], [3]]
    keys, values = randn(11, kv_heads, 8, seed=1), randn(11, kv_heads, 8, seed=2)
    key_cache, value_cache = torch.zeros(kv_heads, 8, block_size, 8), torch.zeros(kv_heads, 8, block_size, 8)
    slots = torch.tensor([tables[0][p // block_size] * block_size + p % block_size for p in range(11)])
    reference.write_kv(key_cache, value_cache, keys, values, slots)
    lone_key, lone_value = randn(1, kv_heads, 8, seed=3), randn(1, kv_heads, 8, seed=4)
    reference.write_kv(key_cache, value_cache, lone_key, lone_value, torch.tensor([3 * block_size]))

    query = randn(6, 4, 8, seed=5)
    block_tables = torch.tensor([tables[0], tables[1] + [0, 0]])
    out = reference.paged_attention(query, key_cache, value_cache, block_tables, (11, 1), (0, 5, 6), window, scale)
    mask = torch.ones(5, 11, dtype=torch.bool).tril(6).triu(7 - (window or 99))  # row 0 stands at position 6
    expected = functional.scaled_dot_product_attention(
        query[:5].transpose(0, 1)[None],
        keys.transpose(0, 1).repeat_interleave(4 // kv_heads, 0)[None],
        values.transpose(0, 1).repeat_interleave(4 // kv_heads, 0)[None],
        attn_mask=mask,
        scale=scale,
    )[0].transpose(0, 1)
    torch.testing.assert_close(out[:5], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out[5], lone_value[0].repeat_interleave(4 // kv_heads, 0))
