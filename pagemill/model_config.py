"""What a model is, as numbers: the part of its config that memory fit, the loader and the model code share.

Made from a Hugging Face `config.json` or from GGUF metadata by `model_files.inspect`; knows nothing of files or tensors.
Field names are Hugging Face's own (https://huggingface.co/docs/transformers/model_doc/llama#transformers.LlamaConfig) where it
has one for what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained length. `kind` is Hugging Face's `rope_type`."""

    kind: str  # "linear" | "llama3" | "yarn", or "factors": stored in the checkpoint, as GGUF does
    factor: float
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, yarn; tokens; 0: max_position_embeddings
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole dimensions only
    attention_factor: float = 1.0  # yarn: of cosines and sines


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of some layers' MLP."""

    count: int  # experts a layer
    chosen: int  # of them, by each token
    intermediate_size: int  # of one expert
    normalised: bool  # the chosen ones' weights are made to sum to 1
    layers: tuple[int, ...]  # which have experts; the others have a dense MLP


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
    attention_bias: bool  # of the query, key and value projections
    mlp_bias: bool
    sliding_window: int | None  # tokens that a query sees, itself included, in `sliding_layers`
    dtype: str  # what the checkpoint stores: "float32" | "float16" | "bfloat16" | a GGUF type such as "Q4_1"
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)  # the raw config, for what a family reads on its own
    output_bias: bool = False  # of attention's output projection
    sliding_layers: tuple[int, ...] | None = None  # which have the window; None: all
    local_rope_theta: float | None = None  # of the sliding layers, not stretched; None: as the others
    attention_scale: float | None = None  # of the scores; None: 1/sqrt(head_dim)
    head_norms: bool = False  # each query and key head has a norm
    norms_per_layer: int = 2
    experts: Experts | None = None
    native: bool = True  # False: computed by transformers' own code around our attention
    headless: bool = False  # saved without its output head: it makes embeddings, and its text would make no sense
    stored_parameters: int | None = None  # counted in the checkpoint's headers, where no formula is known

    @property
    def longest_sequence(self) -> int:
        """Tokens that a sequence can have."""
        return self.max_position_embeddings

    def window(self, layer: int) -> int | None:
        """Tokens that a query of this layer sees, itself included; None: all before it."""
        return self.sliding_window if self.sliding_layers is None or layer in self.sliding_layers else None

    def num_parameters(self) -> int:
        """Parameters, tied embeddings counted once. Exact for native families; else what the checkpoint holds."""
        if self.stored_parameters is not None:
            return self.stored_parameters
        h = self.hidden_size
        layer = self._attention_parameters() + self.norms_per_layer * h
        head = 0 if self.tie_word_embeddings else self.vocab_size * h
        return self.vocab_size * h + self.num_hidden_layers * layer + self._mlp_parameters() + h + head

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * bytes_per_element

    def _attention_parameters(self) -> int:
        """Of one layer."""
        h, q, kv = (
            self.hidden_size,
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        )
        biases = (q + 2 * kv if self.attention_bias else 0) + (h if self.output_bias else 0)
        return 2 * h * q + 2 * h * kv + biases + (2 * self.head_dim if self.head_norms else 0)

    def _mlp_parameters(self) -> int:
        """Of all layers."""
        h, i = self.hidden_size, self.intermediate_size
        dense = 3 * h * i + (2 * i + h if self.mlp_bias else 0)
        if self.experts is None:
            return self.num_hidden_layers * dense
        sparse = self.experts.count * (3 * h * self.experts.intermediate_size + h)  # and its row of the router
        return len(self.experts.layers) * sparse + (self.num_hidden_layers - len(self.experts.layers)) * dense
