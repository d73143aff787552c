"""Models of the shapes that people serve, with random weights: what is measured follows from shapes, not from what was learned.

A shape is a config.json and the tensors that go with it. Used by `model_writer`; `tiny` is for the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

BFLOAT16 = 2  # bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. `head_norms`: a norm on each query and key head (Qwen3)."""

    name: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    eps: float
    head_norms: bool = False

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 256,
            "eos_token_id": 258,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes, in the order of the file."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in (f"model.layers.{index}" for index in range(self.layers)):
            yield f"{layer}.input_layernorm.weight", (self.hidden,)
            yield f"{layer}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{layer}.self_attn.q_proj.weight", (query, self.hidden)
            yield f"{layer}.self_attn.k_proj.weight", (key, self.hidden)
            yield f"{layer}.self_attn.v_proj.weight", (key, self.hidden)
            yield f"{layer}.self_attn.o_proj.weight", (self.hidden, query)
            if self.head_norms:
                yield f"{layer}.self_attn.q_norm.weight", (self.head_dim,)
                yield f"{layer}.self_attn.k_norm.weight", (self.head_dim,)
            yield f"{layer}.mlp.gate_proj.weight", (self.inner, self.hidden)
            yield f"{layer}.mlp.up_proj.weight", (self.inner, self.hidden)
            yield f"{layer}.mlp.down_proj.weight", (self.hidden, self.inner)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocab, self.hidden)

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.tensors())

    @property
    def bytes(self) -> int:
        """On disk and on the device, in bfloat16."""
        return self.parameters * BFLOAT16

    @property
    def read_per_token(self) -> int:
        """Bytes of weights that one decode step reads: all but the embedding table, of which it reads a row a sequence."""
        return self.bytes - self.vocab * self.hidden * BFLOAT16


# https://arxiv.org/abs/2307.09288 and https://arxiv.org/abs/2505.09388: the published config.json of each.
LLAMA_2_7B = Shape("llama-2-7b", "LlamaForCausalLM", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 10000.0, 1e-5)
QWEN3_8B = Shape(
    "qwen3-8b", "Qwen3ForCausalLM", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1000000.0, 1e-6, True
)
TINY = Shape("tiny", "Qwen3ForCausalLM", "qwen3", 2, 64, 96, 4, 2, 16, 300, 512, 10000.0, 1e-6, True)
SHAPES = {shape.name: shape for shape in (LLAMA_2_7B, QWEN3_8B, TINY)}
