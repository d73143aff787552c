"""The Llama family: Llama 2 and 3, SmolLM2, Mistral. One decoder, read top to bottom; made from a checkpoint, called by `runner`.

Knows no cache layout (attention is handed in) and no scheduler. https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2310.06825
T = tokens of the step, H = heads, K = key-value heads, D = head_dim, all in the compute dtype.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from pagemill.model_config import ModelConfig
from pagemill_kernels.reference import rms_norm, rotary, swiglu
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.interface import StepAttention
from pagemill_server.model.linear import Linear, make_linear
from pagemill_server.model.rope import make_table


class Llama:
    """All layers. `max_positions` bounds the positions that it will be asked for."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> None:
        self._eps = config.rms_norm_eps
        self._embedding = checkpoint.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        factors = checkpoint.take_if_there("rope_freqs.weight", config.head_dim // 2) if _has_factors(config) else None
        self._rope = make_table(config, max_positions, self._embedding.dtype, self._embedding.device, factors)
        self._layers = [_Layer(checkpoint, config, index) for index in range(config.num_hidden_layers)]
        self._norm = checkpoint.take("model.norm.weight", config.hidden_size)
        tied = config.tie_word_embeddings
        head = self._embedding if tied else checkpoint.take("lm_head.weight", config.vocab_size, config.hidden_size)
        self._head = make_linear(head)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → hidden states [T, hidden_size], before the last norm."""
        x = functional.embedding(token_ids, self._embedding)
        cos, sin = self._rope.cos.index_select(0, positions), self._rope.sin.index_select(0, positions)
        for layer in self._layers:
            x = layer.forward(x, cos, sin, attend)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the rows that are sampled [R, hidden_size] → float32 [R, vocab_size]."""
        return self._head(rms_norm(hidden, self._norm, self._eps)).float()


class _Layer:
    """Attention, then the gated MLP, each behind a norm and added to the stream."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, index: int) -> None:
        name = f"model.layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        self._index, self._eps, self._head_dim = index, config.rms_norm_eps, config.head_dim
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        q_size, kv_size = self._heads * self._head_dim, self._kv_heads * self._head_dim

        def linear(names: tuple[str, ...], sizes: tuple[int, ...], in_size: int, bias: bool) -> Linear:
            weight = checkpoint.take_rows([f"{name}.{part}.weight" for part in names], sizes, in_size)
            if not bias:
                return make_linear(weight)
            return make_linear(weight, checkpoint.take_rows([f"{name}.{part}.bias" for part in names], sizes))

        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self._input_norm = checkpoint.take(f"{name}.input_layernorm.weight", hidden)
        self._qkv = linear(qkv, (q_size, kv_size, kv_size), hidden, config.attention_bias)
        self._out = linear(("self_attn.o_proj",), (hidden,), q_size, config.attention_bias)
        self._mlp_norm = checkpoint.take(f"{name}.post_attention_layernorm.weight", hidden)
        self._gate_up = linear(("mlp.gate_proj", "mlp.up_proj"), (inner, inner), hidden, config.mlp_bias)
        self._down = linear(("mlp.down_proj",), (hidden,), inner, config.mlp_bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        tokens, heads, kv_heads = x.shape[0], self._heads, self._kv_heads
        qkv = self._qkv(rms_norm(x, self._input_norm, self._eps)).view(tokens, -1, self._head_dim)  # [T, H + 2K, D]
        rotated = rotary(qkv[:, : heads + kv_heads], cos, sin)  # queries and keys in one go
        seen = attend(rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :], self._index)
        x = x + self._out(seen.view(tokens, heads * self._head_dim))
        return x + self._down(swiglu(self._gate_up(rms_norm(x, self._mlp_norm, self._eps))))


def _has_factors(config: ModelConfig) -> bool:
    return config.rope_scaling is not None and config.rope_scaling.kind == "factors"
