"""BERT and RoBERTa: encoders, whose tokens see the whole text. Read top to bottom; made from a checkpoint, called by `encoder`.

No cache and no padding: the texts of a step stand in one row after another, and attention is computed text by text at its own
shape, so that a vector doesn't depend on what else is in the step. https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/1907.11692
T = tokens of the step, H = heads, D = head_dim, all in the compute dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch.nn import functional

from pagemill.encoder_config import EncoderConfig
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.linear import Linear, make_linear

_PREFIXES = ("", "bert.", "roberta.")  # of tensor names: saved bare, or inside a model with a head
# Heads that no embedding reads, by the beginnings of their names.
UNUSED = tuple(
    prefix + name for prefix in _PREFIXES for name in ("pooler.", "cls.", "lm_head.", "embeddings.position_ids")
)


def find_prefix(checkpoint: Checkpoint) -> str:
    """What all of its tensors' names begin with."""
    return next((p for p in _PREFIXES if checkpoint.has(f"{p}embeddings.word_embeddings.weight")), "")


class Bert:
    """All layers."""

    def __init__(self, checkpoint: Checkpoint, config: EncoderConfig) -> None:
        hidden = config.hidden_size
        prefix = find_prefix(checkpoint)
        name = f"{prefix}embeddings"
        self._first_position = config.first_position
        self._words = checkpoint.take(f"{name}.word_embeddings.weight", config.vocab_size, hidden)
        self._positions = checkpoint.take(f"{name}.position_embeddings.weight", config.max_position_embeddings, hidden)
        # A text alone is all of the first type.
        self._type = checkpoint.take(f"{name}.token_type_embeddings.weight", config.num_token_types, hidden)[0].clone()
        self._norm = _Norm(checkpoint, f"{name}.LayerNorm", config)
        self._layers = [
            _Layer(checkpoint, f"{prefix}encoder.layer.{index}", config) for index in range(config.num_hidden_layers)
        ]
        checkpoint.finish(unused=UNUSED)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, query_start: Sequence[int]) -> torch.Tensor:
        """int64 [T], int64 [T] from 0 in each text, where each text begins (and T) → last hidden states [T, hidden_size]."""
        words = functional.embedding(token_ids, self._words) + self._type
        x = self._norm(words + functional.embedding(positions + self._first_position, self._positions))
        for layer in self._layers:
            x = layer.forward(x, query_start)
        return x


class _Layer:
    """Attention, then the MLP, each added to the stream and the sum normed."""

    def __init__(self, checkpoint: Checkpoint, name: str, config: EncoderConfig) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._heads, self._head_dim = config.num_attention_heads, config.head_dim
        self._activation = _ACTIVATIONS[config.activation]

        def linear(parts: Sequence[str], out_size: int, in_size: int) -> Linear:
            sizes = [out_size] * len(parts)
            weight = checkpoint.take_rows([f"{name}.{part}.weight" for part in parts], sizes, in_size)
            return make_linear(weight, checkpoint.take_rows([f"{name}.{part}.bias" for part in parts], sizes))

        self._qkv = linear([f"attention.self.{part}" for part in ("query", "key", "value")], hidden, hidden)
        self._out = linear(["attention.output.dense"], hidden, hidden)
        self._attention_norm = _Norm(checkpoint, f"{name}.attention.output.LayerNorm", config)
        self._up = linear(["intermediate.dense"], inner, hidden)
        self._down = linear(["output.dense"], hidden, inner)
        self._output_norm = _Norm(checkpoint, f"{name}.output.LayerNorm", config)

    def forward(self, x: torch.Tensor, query_start: Sequence[int]) -> torch.Tensor:
        x = self._attention_norm(self._out(self._attend(self._qkv(x), query_start)) + x)
        return self._output_norm(self._down(self._activation(self._up(x))) + x)

    def _attend(self, qkv: torch.Tensor, query_start: Sequence[int]) -> torch.Tensor:
        """[T, 3 * hidden_size] → [T, hidden_size]: every token sees all of its own text."""
        tokens = qkv.shape[0]
        split = qkv.view(tokens, 3, self._heads, self._head_dim).permute(1, 2, 0, 3)  # [3, H, T, D]
        out = qkv.new_empty(tokens, self._heads, self._head_dim)
        for start, end in pairwise(query_start):
            query, key, value = split[:, None, :, start:end]
            seen = functional.scaled_dot_product_attention(query, key, value)  # [1, H, tokens of the text, D]
            out[start:end] = seen[0].transpose(0, 1)
        return out.view(tokens, -1)


class _Norm:
    """Layer norm."""

    def __init__(self, checkpoint: Checkpoint, name: str, config: EncoderConfig) -> None:
        self._shape, self._eps = (config.hidden_size,), config.rms_norm_eps
        self._weight = checkpoint.take(f"{name}.weight", config.hidden_size)
        self._bias = checkpoint.take(f"{name}.bias", config.hidden_size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


# Not functional.gelu: in the tail of a vector loop it rounds differently (docs/log.md); erf and tanh do not.
def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": torch.relu,
}
