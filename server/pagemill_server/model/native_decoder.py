"""Decoders of the Llama architecture, a whole step at a time in the native kernels: `llama` and `qwen3` are its twins in torch.

Takes a checkpoint's weights tensor by tensor, each packed before the next is read. Products are of the kernels' arithmetic; the
stream between layers, norms and rotations are float32. Made by `families` where `takes` says so, called by `runner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from pagemill.model_config import ModelConfig
from pagemill_kernels.native.decoder import DecoderLayer, DecoderShape, NativeDecoder, Rotary
from pagemill_kernels.native.matrix import Matrix
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.interface import LayerAttention, StepAttention
from pagemill_server.model.layers import attention_kinds
from pagemill_server.model.native_attention import NativeStep, can_attend
from pagemill_server.model.native_kernels import Kernels
from pagemill_server.model.rope import make_table

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_STEP = 16  # elements that the kernels take at once of a token's hidden state


def takes(config: ModelConfig, processes: int) -> bool:
    """Whether a model can be computed so: alone, and of sizes that the kernels have code for."""
    sizes = config.hidden_size % _STEP == 0 and can_attend(config.head_dim, torch.float32)
    return config.native and config.architecture in _ARCHITECTURES and processes == 1 and sizes


class NativeLlama:
    """Behind `families.Model`. `max_positions` bounds the positions that it will be asked for."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> None:
        assert checkpoint.kernels is not None, "there are no native kernels"
        self.attention = attention_kinds(config)
        self._layers = config.num_hidden_layers
        self._decoder = _Reader(checkpoint, checkpoint.kernels, config).decoder(max_positions, self.attention)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → float32 hidden states [T, hidden_size], after the last norm."""
        assert isinstance(attend, NativeStep), "attention is computed in the same kernels"
        return self._decoder.step(token_ids, positions, attend.layout, attend.caches, self._layers)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [R, hidden_size] → float32 [R, vocab_size]."""
        return self._decoder.logits(hidden.contiguous())

    def shortened(self, layers: int) -> NativeLlama:
        """The same model, of whose layers only so many run."""
        first = object.__new__(NativeLlama)
        first.attention, first._decoder, first._layers = self.attention, self._decoder, layers
        return first


class _Reader:
    """Takes the weights."""

    def __init__(self, checkpoint: Checkpoint, kernels: Kernels, config: ModelConfig) -> None:
        self._checkpoint, self._kernels, self._config = checkpoint, kernels, config

    def decoder(self, max_positions: int, kinds: Sequence[LayerAttention]) -> NativeDecoder:
        config, take = self._config, self._checkpoint.take
        shape = DecoderShape(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.vocab_size,
            config.rms_norm_eps,
        )
        embedding, head = self._vocabulary()
        scaling = config.rope_scaling
        own = scaling is not None and scaling.kind == "factors"
        factors = self._vector("rope_freqs.weight", config.head_dim // 2) if own else None
        table = make_table(config, max_positions, torch.float32, torch.device("cpu"), factors)
        rotary = Rotary(table.cos, table.sin)
        layers = [self._layer(f"model.layers.{index}", rotary, kind) for index, kind in enumerate(kinds)]
        norm = take("model.norm.weight", config.hidden_size).float()
        return NativeDecoder(self._kernels.pool, shape, layers, norm, embedding, head)

    def _vocabulary(self) -> tuple[Matrix | torch.Tensor, Matrix]:
        shape = self._config.vocab_size, self._config.hidden_size
        table = self._checkpoint.take("model.embed_tokens.weight", *shape)
        if self._config.tie_word_embeddings:
            head = self._kernels.matrix(table)
            return head, head  # one copy of it
        return self._kernels.rows_of(table), self._kernels.matrix(self._checkpoint.take("lm_head.weight", *shape))

    def _layer(self, name: str, rotary: Rotary, kind: LayerAttention) -> DecoderLayer:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        attention, mlp = partial(self._matrix, f"{name}.self_attn"), partial(self._matrix, f"{name}.mlp")
        head_norm = f"{name}.self_attn.{{}}_norm.weight"
        return DecoderLayer(
            qkv=attention(("q_proj", "k_proj", "v_proj"), (q_size, kv_size, kv_size), hidden, config.attention_bias),
            out=attention(("o_proj",), (hidden,), q_size, config.output_bias),
            gate_up=mlp(("gate_proj", "up_proj"), (inner, inner), hidden, config.mlp_bias, paired=True),
            down=mlp(("down_proj",), (hidden,), inner, config.mlp_bias),
            input_norm=self._vector(f"{name}.input_layernorm.weight", hidden),
            mlp_norm=self._vector(f"{name}.post_attention_layernorm.weight", hidden),
            rotary=rotary,
            scale=kind.scale,
            window=kind.window,
            q_norm=self._vector(head_norm.format("q"), config.head_dim) if config.head_norms else None,
            k_norm=self._vector(head_norm.format("k"), config.head_dim) if config.head_norms else None,
        )

    def _matrix(
        self, module: str, names: Sequence[str], sizes: Sequence[int], in_size: int, bias: bool, *, paired: bool = False
    ) -> Matrix:
        """Several projections [size, in_size] of one input as one."""
        take = self._checkpoint.take_rows
        weight = take([f"{module}.{name}.weight" for name in names], sizes, in_size)
        vector = take([f"{module}.{name}.bias" for name in names], sizes) if bias else None
        return self._kernels.matrix(weight, vector, paired=paired)

    def _vector(self, name: str, size: int) -> torch.Tensor:
        return self._checkpoint.take(name, size).float()
