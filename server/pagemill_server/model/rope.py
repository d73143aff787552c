"""Rotary position tables: the angles of every position, stretched as the checkpoint asks. Made once at load, read by families.

Formulas: https://arxiv.org/abs/2104.09864 (RoPE), https://arxiv.org/abs/2306.15595 (linear), and Llama 3's own stretch as in
https://github.com/meta-llama/llama-models. Kinds that are not here are refused by `pagemill.config_reading`, and again here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines, [positions, head_dim]; sin's first half is negated, as `reference.rotary` wants it."""

    cos: torch.Tensor
    sin: torch.Tensor


def make_table(
    config: ModelConfig,
    length: int,  # positions 0 .. length-1
    dtype: torch.dtype,
    device: torch.device,
    factors: torch.Tensor | None = None,  # float32 [head_dim / 2]: a GGUF's own divisors (rope_freqs.weight)
) -> RopeTable:
    """Angles in float32, then rounded to `dtype`, as Hugging Face computes them."""
    frequencies = _frequencies(config)
    if factors is not None:
        frequencies = frequencies / factors
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies[None]
    cos, sin = angles.cos(), angles.sin()
    return RopeTable(torch.cat((cos, cos), dim=-1).to(device, dtype), torch.cat((-sin, sin), dim=-1).to(device, dtype))


def _frequencies(config: ModelConfig) -> torch.Tensor:
    """float32 [head_dim / 2], radians a position."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "factors":  # factors: applied by make_table
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling, config.max_position_embeddings)
    raise PagemillError(
        FailureReason.UNSUPPORTED_ARCHITECTURE, f"RoPE scaling {scaling.kind} is not supported (linear and llama3 are)"
    )


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling, longest: int) -> torch.Tensor:
    """Long waves are divided by the factor, short ones kept, those between blended."""
    original = scaling.original_max_position_embeddings or longest
    wavelength = 2 * math.pi / frequencies
    blend = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelength > original / scaling.low_freq_factor, frequencies / scaling.factor, blended)
    return torch.where(wavelength < original / scaling.high_freq_factor, frequencies, stretched)
