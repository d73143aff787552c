"""Rotary position tables: the angles of every position, stretched as the checkpoint asks. Made once at load, read by families.

Formulas: https://arxiv.org/abs/2104.09864 (RoPE), https://arxiv.org/abs/2306.15595 (linear), https://arxiv.org/abs/2309.00071
(YaRN), and Llama 3's own stretch as in https://github.com/meta-llama/llama-models. Kinds that are not here are refused by
`pagemill.config_refusals`, and again here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
from pagemill.rope_reading import ROPE_KINDS


@dataclass(frozen=True, slots=True)
class RopeRows:
    """Cosines and sines of a step's tokens [T, head_dim]; sin's first half is negated, as `reference.rotary` wants it."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class RopeTable:
    """The same by position, [positions, head_dim]."""

    cos: torch.Tensor
    sin: torch.Tensor

    def rows(self, positions: torch.Tensor) -> RopeRows:
        """Of tokens at `positions`, int64 [T]."""
        return RopeRows(self.cos.index_select(0, positions), self.sin.index_select(0, positions))


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
    strength = config.rope_scaling.attention_factor if config.rope_scaling is not None else 1.0
    cos, sin = angles.cos() * strength, angles.sin() * strength
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
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, config)
    raise PagemillError(
        FailureReason.UNSUPPORTED_ARCHITECTURE,
        f"RoPE scaling {scaling.kind} is not supported (these are: {', '.join(ROPE_KINDS)})",
    )


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling, longest: int) -> torch.Tensor:
    """Long waves are divided by the factor, short ones kept, those between blended."""
    original = scaling.original_max_position_embeddings or longest
    wavelength = 2 * math.pi / frequencies
    blend = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelength > original / scaling.low_freq_factor, frequencies / scaling.factor, blended)
    return torch.where(wavelength < original / scaling.high_freq_factor, frequencies, stretched)


def _yarn(frequencies: torch.Tensor, scaling: RopeScaling, config: ModelConfig) -> torch.Tensor:
    """Dimensions that turn often within the trained length are kept, those that turn seldom divided, those between blended."""
    original = scaling.original_max_position_embeddings or config.max_position_embeddings

    def dimension(turns: float) -> float:
        wavelength = original / (turns * 2 * math.pi)
        return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    high += 0.001 if low == high else 0
    divided = ((torch.arange(len(frequencies), dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - divided
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept
