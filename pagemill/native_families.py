"""The decoder families that the server computes itself, and what of each one's config differs from Llama's.

`config_reading` reads what all have in common; a family adds the rest here. The server's `model` package implements them: a test
holds the two together. Values that a config leaves out are those of transformers' config classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagemill import rope_reading
from pagemill.model_config import Experts
from pagemill.rope_reading import FULL, SLIDING

Fields = dict[str, Any]  # of ModelConfig
_GEMMA3_GLOBAL_THETA, _GEMMA3_LOCAL_THETA = 1_000_000.0, 10_000.0


@dataclass(frozen=True, slots=True)
class Family:
    """`defaults` are of fields that the config may leave out, `read` gives what is beyond the common fields."""

    read: Callable[[Mapping[str, Any]], Fields]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    activations: tuple[str, ...] = ("silu", "swish")


def _llama(raw: Mapping[str, Any]) -> Fields:
    bias = bool(raw.get("attention_bias", False))
    return {"attention_bias": bias, "output_bias": bias, "mlp_bias": bool(raw.get("mlp_bias", False))}


def _mistral(raw: Mapping[str, Any]) -> Fields:
    return {"sliding_window": _window(raw)}


def _qwen2(raw: Mapping[str, Any]) -> Fields:
    return {"attention_bias": True} | _qwen_windows(raw)


def _qwen3(raw: Mapping[str, Any]) -> Fields:
    bias = bool(raw.get("attention_bias", False))
    return {"attention_bias": bias, "output_bias": bias, "head_norms": True} | _qwen_windows(raw)


def _qwen3_moe(raw: Mapping[str, Any]) -> Fields:
    bias = bool(raw.get("attention_bias", False))
    count, step = int(raw.get("num_local_experts") or raw["num_experts"]), int(raw["decoder_sparse_step"])
    dense = set(raw.get("mlp_only_layers") or ())
    sparse = [i for i in range(int(raw["num_hidden_layers"])) if i not in dense and (i + 1) % step == 0]
    experts = Experts(
        count=count,
        chosen=int(raw["num_experts_per_tok"]),
        intermediate_size=int(raw["moe_intermediate_size"]),
        normalised=bool(raw["norm_topk_prob"]),
        layers=tuple(sparse),
    )
    if not (0 < experts.chosen <= experts.count < 1 << 16 and 0 < experts.intermediate_size < 1 << 31):
        raise ValueError(f"{experts.chosen} of {experts.count} experts of {experts.intermediate_size}")
    window = _window(raw) if raw.get("use_sliding_window") else None
    return {
        "attention_bias": bias,
        "output_bias": bias,
        "head_norms": True,
        "experts": experts,
        "sliding_window": window,
    }


def _gemma3(raw: Mapping[str, Any]) -> Fields:
    bias, layers = bool(raw.get("attention_bias", False)), int(raw["num_hidden_layers"])
    pattern = int(raw.get("sliding_window_pattern") or 6)
    types = raw.get("layer_types") or [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]
    local = rope_reading.parameters(raw, SLIDING).get("rope_theta") or raw.get("rope_local_base_freq")
    return {
        "attention_bias": bias,
        "output_bias": bias,
        "head_norms": True,
        "norms_per_layer": 4,
        "attention_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "sliding_window": _window(raw),
        "sliding_layers": _sliding(types, layers),
        "rope_theta": rope_reading.theta(raw, _GEMMA3_GLOBAL_THETA),
        "local_rope_theta": float(local or _GEMMA3_LOCAL_THETA),
    }


def _qwen_windows(raw: Mapping[str, Any]) -> Fields:
    """Where the window is on, the first layers see everything: as many as `max_window_layers`, or as `layer_types` says."""
    layers = int(raw["num_hidden_layers"])
    window = _window(raw) if raw.get("use_sliding_window") else None
    first = int(raw["max_window_layers"])
    types = raw.get("layer_types") or [SLIDING if window is not None and i >= first else FULL for i in range(layers)]
    sliding = _sliding(types, layers)
    if sliding and window is None:
        raise ValueError("layer_types names sliding layers, and there is no sliding window")
    return {"sliding_window": window, "sliding_layers": sliding}


def _sliding(types: list[str], layers: int) -> tuple[int, ...]:
    if len(types) < layers:
        raise ValueError(f"{len(types)} layer_types for {layers} layers")
    return tuple(i for i in range(layers) if types[i] == SLIDING)


def _window(raw: Mapping[str, Any]) -> int | None:
    window = raw.get("sliding_window")
    if window is not None and not 0 < int(window) < 1 << 31:
        raise ValueError(f"sliding_window is {window}")
    return None if window is None else int(window)


_QWEN: Fields = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(_llama),
    "MistralForCausalLM": Family(
        _mistral, {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "Qwen2ForCausalLM": Family(_qwen2, _QWEN | {"num_key_value_heads": 32}),
    "Qwen3ForCausalLM": Family(_qwen3, _QWEN | {"num_key_value_heads": 32, "head_dim": 128}),
    "Qwen3MoeForCausalLM": Family(
        _qwen3_moe,
        _QWEN
        | {
            "num_key_value_heads": 4,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_experts": 128,
            "norm_topk_prob": False,
        },
    ),
    "Gemma3ForCausalLM": Family(
        _gemma3,
        {
            "max_position_embeddings": 131072,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        activations=("gelu_pytorch_tanh",),
    ),
}
