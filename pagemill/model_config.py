"""What a model is, as numbers: the part of its config that memory fit, the loader and the model code share.

Made from a Hugging Face `config.json` or from GGUF metadata by `model_files.inspect`; knows nothing of files or tensors.
Field names are Hugging Face's own (https://huggingface.co/docs/transformers/model_doc/llama#transformers.LlamaConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained length. `kind` is Hugging Face's `rope_type`."""

    kind: str  # "linear" | "dynamic" | "llama3" | "yarn" (only those that the family implements are accepted)
    factor: float
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, dynamic, yarn; tokens


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dimensions of a decoder. Lengths in tokens, sizes in elements."""

    architecture: str  # Hugging Face class name, e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    dtype: str  # what the checkpoint stores: "float32" | "float16" | "bfloat16" | a GGUF type such as "Q4_1"
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)  # the raw config, for what a family reads on its own

    @property
    def longest_sequence(self) -> int:
        """Tokens that a sequence can have: up to a window's length the window makes no difference, beyond it we can't compute."""
        if self.sliding_window is None:
            return self.max_position_embeddings
        return min(self.sliding_window, self.max_position_embeddings)

    def num_parameters(self) -> int:
        """Parameters of the Llama layout, tied embeddings counted once. Exact for the families of this module's users."""
        h, q = self.hidden_size, self.num_attention_heads * self.head_dim
        kv = self.num_key_value_heads * self.head_dim
        attention = h * q + 2 * h * kv + q * h + (q + 2 * kv if self.attention_bias else 0)
        if self.attention_bias:
            attention += h
        mlp = 3 * h * self.intermediate_size + ((2 * self.intermediate_size + h) if self.mlp_bias else 0)
        layer = attention + mlp + 2 * h
        head = 0 if self.tie_word_embeddings else self.vocab_size * h
        return self.vocab_size * h + self.num_hidden_layers * layer + h + head

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * bytes_per_element
