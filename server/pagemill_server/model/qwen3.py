"""Qwen3: Llama's decoder with a norm on each query and key head; and Qwen3-MoE, some of whose layers have experts.

Made from a checkpoint, called by `runner`. https://arxiv.org/abs/2505.09388
"""

from __future__ import annotations

import torch

from pagemill.model_config import ModelConfig
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.experts import SparseMLP
from pagemill_server.model.interface import StepAttention
from pagemill_server.model.layers import Attention, GatedMLP, Vocabulary, attention_kinds, rms_norms
from pagemill_server.model.operations import swiglu
from pagemill_server.model.rope import RopeRows, make_table
from pagemill_server.model.weights import LayerWeights


class Qwen3:
    """All layers. `max_positions` bounds the positions that it will be asked for."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> None:
        self.attention = attention_kinds(config)
        self._vocabulary = Vocabulary(checkpoint, config)
        self._rope = make_table(config, max_positions, checkpoint.dtype, checkpoint.device)
        self._layers = [
            _Layer(LayerWeights(checkpoint, f"model.layers.{index}"), config, index)
            for index in range(config.num_hidden_layers)
        ]
        self._norm = rms_norms(config.rms_norm_eps)(LayerWeights(checkpoint, "model"), "norm", config.hidden_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → hidden states [T, hidden_size], after the last norm."""
        x, rope = self._vocabulary.embed(token_ids), self._rope.rows(positions)
        for layer in self._layers:
            x = layer.forward(x, rope, attend)
        return self._norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] → float32 [R, vocab_size]."""
        return self._vocabulary.logits(hidden)


class _Layer:
    """Attention with norms a head, then an MLP or experts, each behind a norm and added to the stream."""

    def __init__(self, weights: LayerWeights, config: ModelConfig, index: int) -> None:
        hidden, norm = config.hidden_size, rms_norms(config.rms_norm_eps)
        self._input_norm = norm(weights, "input_layernorm", hidden)
        self._attention = Attention(weights.part("self_attn"), config, index, head_norm=norm)
        self._mlp_norm = norm(weights, "post_attention_layernorm", hidden)
        self._mlp = _make_mlp(weights.part("mlp"), config, index)

    def forward(self, x: torch.Tensor, rope: RopeRows, attend: StepAttention) -> torch.Tensor:
        normed, x = self._mlp_norm.of_sum(self._attention(self._input_norm(x), rope, attend), x)
        return x + self._mlp(normed)


def _make_mlp(weights: LayerWeights, config: ModelConfig, index: int) -> GatedMLP | SparseMLP:
    if config.experts is not None and index in config.experts.layers:
        return SparseMLP(weights, config.hidden_size, config.experts)
    return GatedMLP(weights, config.hidden_size, config.intermediate_size, config.mlp_bias, swiglu)
