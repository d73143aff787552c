"""What decoder families are built of: embedding and head, attention, the gated MLP, norms. Each family's file puts them together.

Attention over the cache is handed in (`interface.StepAttention`), so nothing here knows blocks or sequences.
T = tokens of the step, H = heads, K = key-value heads, D = head_dim, all in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pagemill.model_config import ModelConfig
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.interface import LayerAttention, StepAttention
from pagemill_server.model.linear import NativeLinear, make_linear
from pagemill_server.model.operations import add_rms_norm, rms_norm, rms_norm_wide, rotary
from pagemill_server.model.rope import RopeRows
from pagemill_server.model.weights import LayerWeights

Norm = Callable[[torch.Tensor], torch.Tensor]
MakeNorm = Callable[[LayerWeights, str, int], Norm]  # of a name in a layer and a size
Activation = Callable[[torch.Tensor], torch.Tensor]  # gate and up side by side [T, 2 * n] → [T, n]


class RMSNorm:
    """Llama's: the weight is multiplied in the compute dtype."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._weight, self._eps)

    def of_sum(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(The norm of both together, their sum): one kernel on a GPU."""
        return add_rms_norm(x, residual, self._weight, self._eps)


class OffsetNorm:
    """Gemma's: what is stored is the weight less one, and it is multiplied in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps = 1.0 + weight.float(), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm_wide(x, self._weight, self._eps)


class Vocabulary:
    """Token embeddings and the output head, which may be the same table."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        shape = config.vocab_size, config.hidden_size
        kernels, self._dtype = checkpoint.kernels, checkpoint.dtype
        table = checkpoint.take("model.embed_tokens.weight", *shape)
        head = table if config.tie_word_embeddings else checkpoint.take("lm_head.weight", *shape)
        self._head = make_linear(head, kernels=kernels)
        self._rows: Callable[[torch.Tensor], torch.Tensor]
        if isinstance(self._head, NativeLinear) and config.tie_word_embeddings:
            self._rows = self._head.rows  # one copy of it
        else:
            kept = table if kernels is None else kernels.rows_of(table)
            self._rows = lambda token_ids: functional.embedding(token_ids, kept)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] → [T, hidden_size]."""
        return self._rows(token_ids).to(self._dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] → float32 [R, vocab_size]."""
        return self._head(hidden).float()


class Attention:
    """Queries, keys and values, with a norm a head where the family has it, rotated, attended to, and projected back."""

    def __init__(
        self, weights: LayerWeights, config: ModelConfig, index: int, head_norm: MakeNorm | None = None
    ) -> None:
        self._index, self._head_dim = index, config.head_dim
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        q_size, kv_size = self._heads * self._head_dim, self._kv_heads * self._head_dim
        hidden = config.hidden_size
        self._qkv = weights.fan_out(
            ("q_proj", "k_proj", "v_proj"), (q_size, kv_size, kv_size), hidden, config.attention_bias
        )
        self._out = weights.fan_in("o_proj", hidden, q_size, config.output_bias)
        self._norms = (
            (head_norm(weights, "q_norm", self._head_dim), head_norm(weights, "k_norm", self._head_dim))
            if head_norm is not None
            else None
        )

    def __call__(self, x: torch.Tensor, rope: RopeRows, attend: StepAttention) -> torch.Tensor:
        tokens, heads, kv_heads = x.shape[0], self._heads, self._kv_heads
        qkv = self._qkv(x).view(tokens, heads + 2 * kv_heads, self._head_dim)
        turned, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self._norms is not None:
            query_norm, key_norm = self._norms
            turned = torch.cat((query_norm(turned[:, :heads]), key_norm(turned[:, heads:])), dim=1)
        turned = rotary(turned, rope.cos, rope.sin)  # queries and keys in one go
        seen = attend(turned[:, :heads], turned[:, heads:], value, self._index)
        return self._out(seen.view(tokens, heads * self._head_dim))


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    def __init__(
        self, weights: LayerWeights, hidden: int, inner: int, bias: bool, activation: Activation, *, share: bool = False
    ) -> None:
        """`share`: the result is this process's share of it, for the caller to add up."""
        self._gate_up = weights.fan_out(("gate_proj", "up_proj"), (inner, inner), hidden, bias)
        fan_in = weights.share_in if share else weights.fan_in
        self._down = fan_in("down_proj", hidden, inner, bias)
        self._activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._activation(self._gate_up(x)))


def attention_kinds(config: ModelConfig) -> tuple[LayerAttention, ...]:
    """What the attention backend is told of each layer."""
    return tuple(LayerAttention(config.window(i), config.attention_scale) for i in range(config.num_hidden_layers))


def rms_norms(eps: float) -> Callable[[LayerWeights, str, int], RMSNorm]:
    """Makes Llama's norms from a layer's weights."""
    return lambda weights, name, size: RMSNorm(weights.vector(name, size), eps)


def offset_norms(eps: float) -> MakeNorm:
    """Makes Gemma's."""
    return lambda weights, name, size: OffsetNorm(weights.vector(name, size), eps)
