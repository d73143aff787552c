"""Configs become numbers, or one line that says why not."""

from pathlib import Path
from typing import Any

import pytest

from pagemill.config_reading import from_hugging_face
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
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
    config = read(sliding_window=128)  # which Llama does not have, whatever its config says
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (
        64,
        4,
        2,
        16,
    )
    assert (config.bos_token_id, config.eos_token_ids, config.sliding_window) == (1, (2,), None)
    assert config.native
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
        pytest.param(
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}}},
            7.0,
            RopeScaling("linear", 2.0),
            id="by the layer's type",
        ),
    ],
)
def test_rope_in_both_spellings(overrides: dict[str, Any], theta: float, scaling: RopeScaling | None) -> None:
    config = read(**overrides)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_the_end_tokens_of_generation_config_win() -> None:
    assert read({"eos_token_id": [5, 6, 5]}).eos_token_ids == (5, 6)
    assert read({}, eos_token_id=[7]).eos_token_ids == (7,)
    assert read({}, eos_token_id=None).eos_token_ids == ()


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
        {"architectures": ["MistralForCausalLM"], "sliding_window": "wide"},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]},
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"] * 2, "use_sliding_window": False},
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": 3},
        {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 8},
        {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 0},
        {"architectures": ["Gemma3ForCausalLM"], "hidden_act": None, "query_pre_attn_scalar": 0},
        {"architectures": ["PhiForCausalLM"], "hidden_size": None},
        {"rope_scaling": {"rope_type": "yarn", "factor": 0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": -1}},
        {"bos_token_id": {}},
        {"eos_token_id": [[2]]},
        {"eos_token_id": "x"},
    ],
)
def test_other_damage_is_invalid(overrides: dict[str, Any]) -> None:
    refused(FailureReason.MODEL_INVALID, **overrides)


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 77},
            (48, 192, 3, 6, 6, 8, 77),
        ),
        (
            {"architectures": ["OPTForCausalLM"], "hidden_size": 64, "ffn_dim": 100, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 99},
            (64, 100, 2, 4, 4, 16, 99),
        ),
        (
            {"architectures": ["GPTBigCodeForCausalLM"], "n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 4,
             "n_positions": 50, "multi_query": True},
            (64, 96, 2, 4, 1, 16, 50),
        ),
    ],
)  # fmt: skip
def test_a_decoder_that_only_transformers_knows_in_its_own_spelling(
    overrides: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    config = from_hugging_face({"vocab_size": 10} | overrides, {}, WHERE)
    assert not config.native
    assert numbers == (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.max_position_embeddings,
    )


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_saved_without_its_head_counts_none(tied: bool) -> None:
    bare = from_hugging_face(config_json(architectures=["LlamaModel"], tie_word_embeddings=tied), {}, WHERE)
    whole = from_hugging_face(config_json(tie_word_embeddings=True), {}, WHERE)
    assert (bare.headless, whole.headless) == (True, False)
    assert (bare.architecture, bare.num_parameters()) == ("LlamaForCausalLM", whole.num_parameters())
