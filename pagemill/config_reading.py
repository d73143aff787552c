"""Turns a Hugging Face `config.json` into a `ModelConfig`, refusing what would be run wrongly.

Called by `model_files.inspect`. What a family has of its own is in `native_families`, what is refused in `config_refusals`; a
decoder of neither goes through transformers, and here only the numbers that divide the memory are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagemill import encoder_config, rope_reading
from pagemill.config_refusals import refusal
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig
from pagemill.native_families import FAMILIES

DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError)
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
# How the classes that transformers knows spell what we need, besides Llama's way.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"),
}


def from_hugging_face(raw: Mapping[str, Any], generation: Mapping[str, Any], where: Path) -> ModelConfig:
    """Read `config.json` and `generation_config.json` (its EOS list is the fuller one); transformers 4 and 5 spellings."""
    named = raw.get("architectures")
    architecture = str(named[0] if isinstance(named, list) and named else raw.get("model_type", "unknown"))
    if architecture in encoder_config.ENCODER_ARCHITECTURES:
        return encoder_config.read(architecture, raw, where)
    whole = f"{architecture.removesuffix('Model')}ForCausalLM"
    if headless := architecture.endswith("Model") and whole in FAMILIES:
        architecture, raw = whole, {**raw, "tie_word_embeddings": True}
    try:
        why = refusal(architecture, raw)
        if why is None:
            config = replace(_read(architecture, raw, generation), headless=headless)
            check(config)
    except DAMAGE as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{where / 'config.json'} is incomplete or wrong: {error!r}"
        ) from None
    if why is not None:
        raise refused(where, why if architecture in why else f"{why} ({architecture})")
    return config


def _read(architecture: str, raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    family = FAMILIES.get(architecture)
    values = _respelled(raw) if family is None else {**family.defaults, **raw}
    hidden, heads = int(values["hidden_size"]), int(values["num_attention_heads"])
    bos = raw.get("bos_token_id")
    common: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": int(values["vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(values["intermediate_size"]),
        "num_hidden_layers": int(values["num_hidden_layers"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(values.get("num_key_value_heads") or heads),
        "head_dim": int(values.get("head_dim") or hidden // heads),
        "max_position_embeddings": int(values.get("max_position_embeddings", 2048)),
        "rms_norm_eps": float(values.get("rms_norm_eps", 1e-6)),
        "rope_theta": rope_reading.theta(values, 10000.0),
        "rope_scaling": None if family is None else rope_reading.scaling(values),
        "tie_word_embeddings": bool(values.get("tie_word_embeddings", False)),
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "dtype": str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        "bos_token_id": None if bos is None else int(bos),
        "eos_token_ids": token_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
        "extra": dict(raw),
        "native": family is not None,
    }
    return ModelConfig(**common | (family.read(values) if family is not None else {}))


def _respelled(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a class that only transformers knows, in Llama's spelling."""
    values = dict(raw)
    for name, others in _SPELLINGS.items():
        if values.get(name) is None:
            values[name] = next((raw[other] for other in others if raw.get(other) is not None), None)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if values[name] is None:
            raise KeyError(name)
    if values["intermediate_size"] is None:
        values["intermediate_size"] = 4 * int(values["hidden_size"])
    if values["num_key_value_heads"] is None and raw.get("multi_query"):
        values["num_key_value_heads"] = 1
    if values["max_position_embeddings"] is None:
        del values["max_position_embeddings"]
    return values


def check(config: ModelConfig) -> None:
    """Refuse numbers that no model has, before something divides by them or loops over them. Raises ValueError."""
    for name in _COUNTS:
        if not 0 < getattr(config, name) < 1 << 31:
            raise ValueError(f"{name} is {getattr(config, name)}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(f"{config.num_attention_heads} heads over {config.num_key_value_heads} key-value heads")
    scaling = config.rope_scaling
    for name, number in (
        ("rms_norm_eps", config.rms_norm_eps),
        ("rope_theta", config.rope_theta),
        ("the local rope_theta", config.local_rope_theta),
        ("the scale of attention", config.attention_scale),
        ("RoPE factor", scaling.factor if scaling else None),
        ("RoPE attention factor", scaling.attention_factor if scaling else None),
    ):
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name} is {number}")


def token_ids(value: Any) -> tuple[int, ...]:
    """One id, a list of them or nothing, as a tuple without repeats."""
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(int(v) for v in values if v is not None))


def refused(where: Path, why: str) -> PagemillError:
    """What is raised for a model that could be read and can't be computed."""
    return PagemillError(FailureReason.UNSUPPORTED_ARCHITECTURE, f"{where} can't be served: {why}")
