"""How GGUF files of the llama architecture spell and lay out weights, against Hugging Face's way. Used by `checkpoint` only.

Names: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py. The converter also reorders the rows of the
query and key projections, from halves to pairs, because llama.cpp rotates pairs; `restore` undoes that.
"""

from __future__ import annotations

import re

import torch

from pagemill.model_config import ModelConfig

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "rope_freqs": "rope_freqs",  # GGUF's own: Hugging Face keeps these numbers in the config
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)")


def translate(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`."""
    stem, _, kind = name.rpartition(".")
    if match := _LAYER_NAME.fullmatch(stem):
        return f"blk.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return f"{_TOP[stem]}.{kind}"


def restore(name: str, tensor: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Rows of q and k in Hugging Face's order: each head's first half of dimensions, then its second."""
    if ".self_attn.q_proj." in name:
        heads = config.num_attention_heads
    elif ".self_attn.k_proj." in name:
        heads = config.num_key_value_heads
    else:
        return tensor
    pairs = tensor.reshape(heads, config.head_dim // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
