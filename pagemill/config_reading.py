"""Turns a Hugging Face `config.json` or GGUF metadata into a `ModelConfig`, refusing what would be run wrongly.

Called by `model_files.inspect`. The families named here are those that the server's `model` package implements; a contract test
holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagemill import encoder_config
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
from pagemill.tensor_info import TensorInfo

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
ROPE_KINDS = ("linear", "llama3")
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError)
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def from_hugging_face(raw: Mapping[str, Any], generation: Mapping[str, Any], where: Path) -> ModelConfig:
    """Read `config.json` and `generation_config.json` (its EOS list is the fuller one); transformers 4 and 5 spellings."""
    named = raw.get("architectures")
    architecture = str(named[0] if isinstance(named, list) and named else raw.get("model_type", "unknown"))
    if architecture in encoder_config.ENCODER_ARCHITECTURES:
        return encoder_config.read(architecture, raw, where)
    _supported(architecture, SUPPORTED_ARCHITECTURES, where)
    if scheme := raw.get("quantization_config"):
        method = scheme.get("quant_method", "unknown") if isinstance(scheme, dict) else "unknown"
        raise _refuse(where, f"its weights are quantised by {method}, which is not supported: use an unquantised copy")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise _refuse(where, f"its activation {activation} is not supported")
    try:
        hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
        window, bos = raw.get("sliding_window"), raw.get("bos_token_id")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling")  # transformers 5 and 4
        config = ModelConfig(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(raw["intermediate_size"]),
            num_hidden_layers=int(raw["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            max_position_embeddings=int(raw.get("max_position_embeddings", 2048)),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float((rope or {}).get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=_rope_scaling(rope, where),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            sliding_window=None if window is None else int(window),
            dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
            bos_token_id=None if bos is None else int(bos),
            eos_token_ids=_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
            extra=dict(raw),
        )
        _check(config)
    except _DAMAGE as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{where / 'config.json'} is incomplete or wrong: {error!r}"
        ) from None
    return config


def from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: Path) -> ModelConfig:
    """Read GGUF metadata. Shapes that the file states twice are taken from the tensors."""
    family = str(metadata.get("general.architecture", "unknown"))
    _supported(family, tuple(GGUF_ARCHITECTURES), where)
    if metadata.get(f"{family}.expert_count"):
        raise _refuse(where, "it is a mixture of experts, which is not supported")

    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{family}.{key}", default)
        if found is None:
            raise KeyError(f"{family}.{key}")
        return found

    try:
        hidden, heads = int(value("embedding_length")), int(value("attention.head_count"))
        bos = metadata.get("tokenizer.ggml.bos_token_id")
        embedding = tensors["token_embd.weight"]
        config = ModelConfig(
            architecture=GGUF_ARCHITECTURES[family],
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            intermediate_size=int(value("feed_forward_length")),
            num_hidden_layers=int(value("block_count")),
            num_attention_heads=heads,
            num_key_value_heads=int(value("attention.head_count_kv", heads)),
            head_dim=int(value("attention.key_length", hidden // heads)),
            max_position_embeddings=int(value("context_length")),
            rms_norm_eps=float(value("attention.layer_norm_rms_epsilon")),
            rope_theta=float(value("rope.freq_base", 10000.0)),
            rope_scaling=_gguf_rope_scaling(metadata, family, tensors, where),
            tie_word_embeddings="output.weight" not in tensors,
            attention_bias="blk.0.attn_q.bias" in tensors,
            mlp_bias="blk.0.ffn_up.bias" in tensors,
            sliding_window=None,
            dtype=tensors["blk.0.attn_q.weight"].dtype,
            bos_token_id=None if bos is None else int(bos),
            eos_token_ids=_ids(
                [metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")]
            ),
        )
        _check(config)
    except _DAMAGE as error:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{where} has incomplete metadata: {error!r}") from None
    return config


def _check(config: ModelConfig) -> None:
    """Refuse numbers that no model has, before something divides by them or loops over them."""
    for name in _COUNTS:
        if not 0 < getattr(config, name) < 1 << 31:
            raise ValueError(f"{name} is {getattr(config, name)}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(f"{config.num_attention_heads} heads over {config.num_key_value_heads} key-value heads")
    scale = config.rope_scaling.factor if config.rope_scaling else 1.0
    for name, number in (
        ("rms_norm_eps", config.rms_norm_eps),
        ("rope_theta", config.rope_theta),
        ("RoPE factor", scale),
    ):
        if not 0 < number < math.inf:
            raise ValueError(f"{name} is {number}")


def _supported(architecture: str, known: tuple[str, ...], where: Path) -> None:
    if architecture not in known:
        raise _refuse(where, f"its architecture is {architecture}; these can be served: {', '.join(known)}")


def _rope_scaling(rope: Mapping[str, Any] | None, where: Path) -> RopeScaling | None:
    kind = str((rope or {}).get("rope_type") or (rope or {}).get("type") or "default")
    if rope is None or kind == "default":
        return None
    if kind not in ROPE_KINDS:
        raise _refuse(where, f"its RoPE scaling {kind} is not supported (these are: {', '.join(ROPE_KINDS)})")
    return RopeScaling(
        kind,
        float(rope["factor"]),
        float(rope.get("low_freq_factor", 1.0)),
        float(rope.get("high_freq_factor", 4.0)),
        int(rope.get("original_max_position_embeddings", 0)),
    )


def _gguf_rope_scaling(
    metadata: Mapping[str, Any], family: str, tensors: Mapping[str, TensorInfo], where: Path
) -> RopeScaling | None:
    if "rope_freqs.weight" in tensors:
        return RopeScaling("factors", 1.0)  # llama3's stretch, stored as a divisor per frequency in that tensor
    kind = str(metadata.get(f"{family}.rope.scaling.type", "none"))
    if kind == "none":
        return None
    if kind != "linear":
        raise _refuse(where, f"its RoPE scaling {kind} is not supported (linear is)")
    return RopeScaling("linear", float(metadata[f"{family}.rope.scaling.factor"]))


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(int(v) for v in values if v is not None))


def _refuse(where: Path, why: str) -> PagemillError:
    return PagemillError(FailureReason.UNSUPPORTED_ARCHITECTURE, f"{where} can't be served: {why}")
