"""Gemma 3, text: four norms a layer, norms on heads, most layers with a window and rotary positions of their own.

Made from a checkpoint, called by `runner`. https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagemill.model_config import ModelConfig
from pagemill_kernels.reference import geglu
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.interface import StepAttention
from pagemill_server.model.layers import Attention, GatedMLP, Vocabulary, attention_kinds, offset_norms
from pagemill_server.model.rope import RopeRows, make_table
from pagemill_server.model.weights import LayerWeights


class Gemma3:
    """All layers. `max_positions` bounds the positions that it will be asked for."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> None:
        self.attention = attention_kinds(config)
        self._vocabulary = Vocabulary(checkpoint, config)
        dtype, device = checkpoint.dtype, checkpoint.device
        self._scale = torch.tensor(config.hidden_size**0.5).to(
            device, dtype
        )  # rounded to the compute dtype, as it was trained
        self._global_rope = make_table(config, max_positions, dtype, device)
        self._local_rope = make_table(
            replace(config, rope_theta=config.local_rope_theta or config.rope_theta, rope_scaling=None),
            max_positions,
            dtype,
            device,
        )
        self._layers = [
            _Layer(LayerWeights(checkpoint, f"model.layers.{index}"), config, index)
            for index in range(config.num_hidden_layers)
        ]
        self._norm = offset_norms(config.rms_norm_eps)(LayerWeights(checkpoint, "model"), "norm", config.hidden_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → hidden states [T, hidden_size], after the last norm."""
        x = self._vocabulary.embed(token_ids) * self._scale
        everywhere, nearby = self._global_rope.rows(positions), self._local_rope.rows(positions)
        for layer in self._layers:
            x = layer.forward(x, nearby if layer.slides else everywhere, attend)
        return self._norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] → float32 [R, vocab_size]."""
        return self._vocabulary.logits(hidden)


class _Layer:
    """Attention, then the gated MLP, each with a norm before and after, and added to the stream."""

    def __init__(self, weights: LayerWeights, config: ModelConfig, index: int) -> None:
        hidden, norm = config.hidden_size, offset_norms(config.rms_norm_eps)
        self.slides = config.sliding_layers is None or index in config.sliding_layers
        self._input_norm = norm(weights, "input_layernorm", hidden)
        self._attention = Attention(weights.part("self_attn"), config, index, head_norm=norm)
        self._attention_norm = norm(weights, "post_attention_layernorm", hidden)
        self._mlp_norm = norm(weights, "pre_feedforward_layernorm", hidden)
        self._mlp = GatedMLP(weights.part("mlp"), hidden, config.intermediate_size, config.mlp_bias, geglu)
        self._output_norm = norm(weights, "post_feedforward_layernorm", hidden)

    def forward(self, x: torch.Tensor, rope: RopeRows, attend: StepAttention) -> torch.Tensor:
        x = x + self._attention_norm(self._attention(self._input_norm(x), rope, attend))
        return x + self._output_norm(self._mlp(self._mlp_norm(x)))
