"""Configs become numbers, or one line that says why not."""

from pathlib import Path
from typing import Any

import pytest

from pagemill.config_reading import GGUF_ARCHITECTURES, SUPPORTED_ARCHITECTURES, from_gguf, from_hugging_face
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
from pagemill.tensor_info import TensorInfo
from tests.pagemill.sample_models import config_json, weights

WHERE = Path("/models/x")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(generation: dict[str, Any] | None = None, **overrides: Any) -> ModelConfig:
    return from_hugging_face(config_json(**overrides), generation or {}, WHERE)


def refused(reason: FailureReason, **overrides: Any) -> str:
    with pytest.raises(PagemillError, match="/models/x") as caught:
        read(**overrides)
    assert caught.value.failure.reason is reason
    return str(caught.value)


def test_the_numbers_of_a_config() -> None:
    config = read(sliding_window=128)
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (
        64,
        4,
        2,
        16,
    )
    assert (config.bos_token_id, config.eos_token_ids, config.sliding_window) == (1, (2,), 128)
    assert config.num_parameters() == sum(tensor.size for tensor in weights().values())
    assert config.kv_bytes_per_token(4) == 2 * 2 * 2 * 16 * 4


def test_what_is_left_out_has_the_defaults_of_transformers() -> None:
    config = read(num_key_value_heads=None, rope_theta=None, tie_word_embeddings=None, torch_dtype=None)
    assert (config.num_key_value_heads, config.rope_theta, config.tie_word_embeddings) == (4, 10000.0, False)
    assert config.dtype == "float32"
    assert read(head_dim=8).head_dim == 8


@pytest.mark.parametrize(
    ("overrides", "theta", "scaling"),
    [
        pytest.param(
            {"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), id="4"
        ),
        pytest.param(
            {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            5e5,
            RopeScaling("llama3", 32.0, 1.0, 4.0, 8192),
            id="transformers 5",
        ),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, RopeScaling("linear", 2.0), id="old spelling"
        ),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, None, id="default"),
    ],
)
def test_rope_in_both_spellings(overrides: dict[str, Any], theta: float, scaling: RopeScaling | None) -> None:
    config = read(**overrides)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_the_end_tokens_of_generation_config_win() -> None:
    assert read({"eos_token_id": [5, 6, 5]}).eos_token_ids == (5, 6)
    assert read({}, eos_token_id=[7]).eos_token_ids == (7,)
    assert read({}, eos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None, "model_type": "bert"}, "bert"),
        ({"architectures": [], "model_type": "t5"}, "t5"),
        ({"architectures": {"a": 1}, "model_type": None}, "unknown"),
        ({"architectures": 5}, "llama"),
        ({"architectures": [["x"]]}, "x"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": "int4"}, "quantised"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ],
)
def test_what_would_be_run_wrongly_is_refused_by_name(overrides: dict[str, Any], named: str) -> None:
    assert named in refused(FailureReason.UNSUPPORTED_ARCHITECTURE, **overrides)


def test_the_refusal_says_what_can_be_served() -> None:
    message = refused(FailureReason.UNSUPPORTED_ARCHITECTURE, architectures=["OPTForCausalLM"])
    assert all(name in message for name in SUPPORTED_ARCHITECTURES)


REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@pytest.mark.parametrize("value", [None, "many", [], {}, 0, -1, 2**31, float("inf"), float("nan")])
@pytest.mark.parametrize("name", REQUIRED)
def test_missing_and_impossible_numbers_are_invalid(name: str, value: Any) -> None:
    refused(FailureReason.MODEL_INVALID, **{name: value})


@pytest.mark.parametrize(
    "overrides",
    [
        {"num_key_value_heads": 3},
        {"num_key_value_heads": -2},
        {"head_dim": -4},
        {"hidden_size": 2},  # fewer than heads: a head dimension of zero
        {"max_position_embeddings": 0},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1.0},
        {"rope_scaling": ["linear"]},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"sliding_window": "wide"},
        {"bos_token_id": {}},
        {"eos_token_id": [[2]]},
        {"eos_token_id": "x"},
    ],
)
def test_other_damage_is_invalid(overrides: dict[str, Any]) -> None:
    refused(FailureReason.MODEL_INVALID, **overrides)


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def tensors(*extra: str) -> dict[str, TensorInfo]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (40, 64), "blk.0.attn_q.weight": (64, 64)}
    shapes |= dict.fromkeys(extra, (8,))
    return {name: TensorInfo(name, "Q4_1", shape, WHERE, 0, 0) for name, shape in shapes.items()}


def test_gguf_metadata() -> None:
    config = from_gguf(METADATA | {"tokenizer.ggml.eot_token_id": 3}, tensors(), WHERE)
    assert (config.vocab_size, config.head_dim, config.num_key_value_heads, config.dtype) == (40, 16, 2, "Q4_1")
    assert (config.tie_word_embeddings, config.rope_scaling, config.rope_theta) == (True, None, 10000.0)
    assert config.eos_token_ids == (2, 3)
    assert not from_gguf(METADATA, tensors("output.weight"), WHERE).tie_word_embeddings
    assert from_gguf(METADATA, tensors("blk.0.attn_q.bias"), WHERE).attention_bias


def test_gguf_rope() -> None:
    linear = METADATA | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert from_gguf(linear, tensors(), WHERE).rope_scaling == RopeScaling("linear", 2.0)
    assert from_gguf(METADATA, tensors("rope_freqs.weight"), WHERE).rope_scaling == RopeScaling("factors", 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "qwen3moe"}, "qwen3moe"),
        ({"general.architecture": 5}, "5"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
    ],
)
def test_a_gguf_that_would_be_run_wrongly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(PagemillError, match=named) as caught:
        from_gguf(METADATA | change, tensors(), WHERE)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE
    assert GGUF_ARCHITECTURES["llama"] in SUPPORTED_ARCHITECTURES


@pytest.mark.parametrize("value", [None, "many", [1], 0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", [key for key in METADATA if key.startswith("llama.")])
def test_missing_and_impossible_gguf_numbers_are_invalid(name: str, value: Any) -> None:
    if name == "llama.attention.head_count_kv" and value is None:
        assert from_gguf({k: v for k, v in METADATA.items() if k != name}, tensors(), WHERE).num_key_value_heads == 4
        return
    metadata = METADATA | {name: value} if value is not None else {k: v for k, v in METADATA.items() if k != name}
    with pytest.raises(PagemillError, match="metadata") as caught:
        from_gguf(metadata, tensors(), WHERE)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


@pytest.mark.parametrize("missing", ["token_embd.weight", "blk.0.attn_q.weight"])
def test_a_gguf_without_its_first_tensors_is_invalid(missing: str) -> None:
    with pytest.raises(PagemillError, match=missing):
        from_gguf(METADATA, {k: v for k, v in tensors().items() if k != missing}, WHERE)


def test_an_embedding_without_rows_is_invalid() -> None:
    flat = tensors() | {"token_embd.weight": TensorInfo("token_embd.weight", "F32", (), WHERE, 0, 4)}
    with pytest.raises(PagemillError, match="metadata"):
        from_gguf(METADATA, flat, WHERE)
