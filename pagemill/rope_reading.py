"""Reads how rotary positions are stretched from `config.json`, in transformers' 4 and 5 spellings. Used by `config_reading`.

What depends on the lengths of the sequences that happen to run together (dynamic, longrope) is refused whoever computes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pagemill.model_config import RopeScaling

ROPE_KINDS = ("linear", "llama3", "yarn")
VARYING_KINDS = ("dynamic", "longrope", "su")
SLIDING, FULL = "sliding_attention", "full_attention"


def parameters(raw: Mapping[str, Any], layer_type: str = FULL) -> Mapping[str, Any]:
    """The fields for layers of a type: transformers 5 may have one set for all, or one a type."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if FULL in given or SLIDING in given:
        return given.get(layer_type) or {}
    return given if layer_type == FULL else {}


def kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def kinds(raw: Mapping[str, Any]) -> Iterator[str]:
    """Of all layers."""
    yield from {kind(parameters(raw, layer_type)) for layer_type in (FULL, SLIDING)}


def theta(raw: Mapping[str, Any], default: float, layer_type: str = FULL) -> float:
    """The base of the frequencies."""
    return float(parameters(raw, layer_type).get("rope_theta") or raw.get("rope_theta") or default)


def scaling(raw: Mapping[str, Any]) -> RopeScaling | None:
    """Of the layers that see everything; the kind must be one of ROPE_KINDS. Raises KeyError and so on for damage."""
    rope = parameters(raw)
    if kind(rope) == "default":
        return None
    original = int(rope.get("original_max_position_embeddings") or 0)
    if kind(rope) == "yarn":
        return _yarn(rope, original, int(raw["max_position_embeddings"]))
    return RopeScaling(
        kind(rope),
        float(rope["factor"]),
        float(rope.get("low_freq_factor", 1.0)),
        float(rope.get("high_freq_factor", 4.0)),
        original,
    )


def _yarn(rope: Mapping[str, Any], original: int, longest: int) -> RopeScaling:
    """https://arxiv.org/abs/2309.00071; left out, the factor is the ratio of the two lengths."""
    original = original or longest
    factor = float(longest / original if rope.get("factor") is None else rope["factor"])
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        scales = rope.get("mscale"), rope.get("mscale_all_dim")
        attention_factor = _mscale(factor, 1.0)
        if scales[0] and scales[1]:
            attention_factor = _mscale(factor, float(scales[0])) / _mscale(factor, float(scales[1]))
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=float(attention_factor),
    )


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
