"""BERT and RoBERTa, a whole step at a time in the native kernels: `bert` is their twin in torch.

Takes a checkpoint's weights tensor by tensor, each packed before the next is read. Arithmetic is float32 or bfloat16, the states
float32. Made by `load_encoder` where `device` has chosen the kernels, called by `encoder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill.encoder_config import EncoderConfig
from pagemill_kernels.native.encoder import EncoderLayer, EncoderShape, NativeEncoder, Norm
from pagemill_kernels.native.matrix import Matrix
from pagemill_server.model.bert import UNUSED, find_prefix
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.native_attention import can_attend


def takes(config: EncoderConfig) -> bool:
    """Whether the kernels have code for a model's sizes. A hidden size is so many heads, and so a multiple of 16 too."""
    return can_attend(config.head_dim, torch.float32)


class NativeBert:
    """All layers."""

    def __init__(self, checkpoint: Checkpoint, config: EncoderConfig) -> None:
        assert checkpoint.kernels is not None, "there are no native kernels"
        self._checkpoint, self._kernels, self._config = checkpoint, checkpoint.kernels, config
        hidden, prefix = config.hidden_size, find_prefix(checkpoint)
        name = f"{prefix}embeddings"
        words = checkpoint.take(f"{name}.word_embeddings.weight", config.vocab_size, hidden)
        positions = checkpoint.take(f"{name}.position_embeddings.weight", config.max_position_embeddings, hidden)
        types = checkpoint.take(f"{name}.token_type_embeddings.weight", config.num_token_types, hidden)
        shape = EncoderShape(hidden, config.num_attention_heads, config.activation, config.rms_norm_eps)
        norm = self._norm(f"{name}.LayerNorm")
        layers = [self._layer(f"{prefix}encoder.layer.{index}") for index in range(config.num_hidden_layers)]
        # A text alone is all of the first type.
        typed = positions[config.first_position :].float() + types[0].float()
        self._encoder = NativeEncoder(self._kernels.pool, shape, layers, norm, typed, self._kernels.rows_of(words))
        checkpoint.finish(unused=UNUSED)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, query_start: Sequence[int]) -> torch.Tensor:
        """int64 [T], int64 [T] from 0 in each text, where each text begins (and T) → last hidden states [T, hidden_size]."""
        return self._encoder.forward(token_ids, positions, query_start)

    def _layer(self, name: str) -> EncoderLayer:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        return EncoderLayer(
            qkv=self._matrix([f"{name}.attention.self.{part}" for part in ("query", "key", "value")], hidden, hidden),
            out=self._matrix([f"{name}.attention.output.dense"], hidden, hidden),
            up=self._matrix([f"{name}.intermediate.dense"], inner, hidden),
            down=self._matrix([f"{name}.output.dense"], hidden, inner),
            attention_norm=self._norm(f"{name}.attention.output.LayerNorm"),
            output_norm=self._norm(f"{name}.output.LayerNorm"),
        )

    def _matrix(self, names: Sequence[str], out_size: int, in_size: int) -> Matrix:
        """Several projections [out_size, in_size] of one input as one."""
        take, sizes = self._checkpoint.take_rows, [out_size] * len(names)
        weight = take([f"{name}.weight" for name in names], sizes, in_size)
        return self._kernels.matrix(weight, take([f"{name}.bias" for name in names], sizes))

    def _norm(self, name: str) -> Norm:
        take, size = self._checkpoint.take, self._config.hidden_size
        return Norm(take(f"{name}.weight", size).float(), take(f"{name}.bias", size).float())
