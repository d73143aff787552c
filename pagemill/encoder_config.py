"""What an encoder is, as numbers: BERT's layers and RoBERTa's, which differ in where positions begin. No cache, no head.

A `ModelConfig` whose decoder fields stand still, so that whoever asks for sizes need not tell the two apart. Read from
`config.json` by `config_reading`; the server's `model/bert.py` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig

_BERT = ("BertModel", "BertForMaskedLM")
_ROBERTA = ("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM")
ENCODER_ARCHITECTURES = _BERT + _ROBERTA
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class EncoderConfig(ModelConfig):
    """`rms_norm_eps` is the layer norms' epsilon; what only a decoder has is empty."""

    num_token_types: int = 1
    first_position: int = 0  # of a text's first token in the position table: RoBERTa's begin after its padding id
    activation: str = "gelu"

    @property
    def longest_sequence(self) -> int:
        return self.max_position_embeddings - self.first_position

    def num_parameters(self) -> int:
        """Without the pooler, which no embedding reads."""
        h, i = self.hidden_size, self.intermediate_size
        layer = 4 * (h * h + h) + (h * i + i) + (i * h + h) + 4 * h
        tables = self.vocab_size + self.max_position_embeddings + self.num_token_types
        return tables * h + 2 * h + self.num_hidden_layers * layer

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        return 0


def read(architecture: str, raw: Mapping[str, Any], where: Path) -> EncoderConfig:
    """From `config.json`. Raises PagemillError for what is wrong, or would be computed wrongly."""
    if raw.get("quantization_config"):
        raise _refuse(where, "its weights are quantised: use an unquantised copy")
    if (kind := raw.get("position_embedding_type", "absolute")) != "absolute":
        raise _refuse(where, f"its position embeddings are {kind}")
    if raw.get("is_decoder") or raw.get("add_cross_attention"):
        raise _refuse(where, "it is a BERT that decodes")
    if (activation := raw.get("hidden_act", "gelu")) not in ACTIVATIONS:
        raise _refuse(where, f"its activation is {activation}")
    try:
        config = _numbers(architecture, raw)
        _check(config)
    except _DAMAGE as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{where / 'config.json'} is incomplete or wrong: {error!r}"
        ) from None
    return config


def _numbers(architecture: str, raw: Mapping[str, Any]) -> EncoderConfig:
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    padding = raw.get("pad_token_id")
    return EncoderConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_hidden_layers=int(raw["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=int(raw["max_position_embeddings"]),
        rms_norm_eps=float(raw.get("layer_norm_eps", 1e-12)),
        rope_theta=1.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        sliding_window=None,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        bos_token_id=None,
        eos_token_ids=(),
        extra=dict(raw),
        num_token_types=int(raw.get("type_vocab_size", 2)),
        first_position=(1 if padding is None else int(padding)) + 1 if architecture in _ROBERTA else 0,
        activation=str(raw.get("hidden_act", "gelu")),
    )


def _check(config: EncoderConfig) -> None:
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "longest_sequence"):
        if not 0 < getattr(config, name) < 1 << 31:
            raise ValueError(f"{name} is {getattr(config, name)}")
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(f"{config.num_attention_heads} heads over a hidden size of {config.hidden_size}")
    if not 0 < config.rms_norm_eps < math.inf:
        raise ValueError(f"layer_norm_eps is {config.rms_norm_eps}")


def _refuse(where: Path, why: str) -> PagemillError:
    return PagemillError(FailureReason.UNSUPPORTED_ARCHITECTURE, f"{where} can't be served: {why}")
