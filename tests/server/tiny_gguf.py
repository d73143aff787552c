"""The tiny random Llama as a GGUF file, laid out as llama.cpp's converter does it. Used by tests of loading and of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from safetensors.numpy import load_file

from tests.server.tiny import CHAT_TEMPLATE, byte_characters, write_tiny_llama

_CONTROL = 3  # token type
_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(
    folder: Path,
    *,
    quantization: str = "F32",
    pre: str = "gpt-2",
    rope_freqs: list[float] | None = None,
    **overrides: Any,
) -> Path:
    """Write folder/tiny.gguf and return the file. `overrides` as in `write_tiny_llama`; the same seed gives the same weights.

    Matrices are stored as `quantization` ("F32", "F16", "BF16", "Q8_0", "Q4_1" …), vectors as F32.
    """
    source = write_tiny_llama(folder / "source", **overrides)
    config = json.loads((source / "config.json").read_text())
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if (config["rope_scaling"] or {}).get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    _add_tokenizer(writer, config, pre)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, dtype=np.float32))
    for name, tensor in load_file(source / "model.safetensors").items():
        _add_tensor(writer, name, tensor, config, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, config: dict[str, Any], pre: str) -> None:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = byte_characters() + specials
    zero = byte_characters()[0]
    # The writer drops an empty list of merges, which a file must have: two zero bytes are the one merge.
    spare = [zero * 2, *(f"<spare_{index}>" for index in range(config["vocab_size"] - len(tokens) - 1))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + spare)
    writer.add_token_types([1] * 256 + [_CONTROL] * 3 + [1] + [5] * (len(spare) - 1))
    writer.add_token_merges([f"{zero} {zero}"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: npt.NDArray[Any], config: dict[str, Any], quantization: str
) -> None:
    if "q_proj" in name:
        tensor = _pairs(tensor, config["num_attention_heads"])
    if "k_proj" in name:
        tensor = _pairs(tensor, config["num_key_value_heads"])
    for theirs, ggufs in _NAMES.items():
        name = name.replace(theirs, ggufs)
    kind = gguf.GGMLQuantizationType[quantization if tensor.ndim == 2 else "F32"]
    writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)


def _pairs(tensor: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """What the converter does to q and k: from halves to neighbouring pairs."""
    return (
        tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    )
