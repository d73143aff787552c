"""Small real model files for the tests of `pagemill`: GGUFs by llama.cpp's own writer, safetensors by their own library.

They hold the shapes of a two-layer Llama and no sense. Knows nothing of the code that reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCAB, CONTEXT = 64, 96, 4, 2, 2, 40, 256
KV = HIDDEN // HEADS * KV_HEADS


def config_json(**overrides: Any) -> dict[str, Any]:
    """A `config.json` with those shapes; a value of None takes the field away."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | overrides
    return {key: value for key, value in config.items() if value is not None}


def weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Every tensor by Hugging Face's names, float32."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in (f"model.layers.{index}" for index in range(LAYERS)):
        shapes |= {
            f"{layer}.input_layernorm.weight": (HIDDEN,),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (KV, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (KV, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, *, shards: int = 1, **overrides: Any) -> Path:
    """A model as Hugging Face lays it out, in one file or in shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(**overrides)))
    tensors = weights()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    place: dict[str, str] = {}
    for shard in range(shards):
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / name)
        place |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return folder


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    leave_out: tuple[str, ...] = (),
    extra: dict[str, str | int] | None = None,
    extra_tensors: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """The same model as a GGUF, its attention stored as Q8_0.

    `leave_out` names metadata keys that are not written, `extra` keys (numbers, text) that are.
    """
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }
    for key, number in numbers.items():
        if key not in leave_out:
            writer.add_uint32(f"{architecture}.{key}", number)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (extra or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_int64(key, value)
    for name, tensor in _gguf_weights().items():
        if ".attn_" in name and tensor.ndim == 2:
            writer.add_tensor(
                name,
                gguf.quantize(tensor, gguf.GGMLQuantizationType.Q8_0),
                raw_dtype=gguf.GGMLQuantizationType.Q8_0,
            )
        elif name not in leave_out:
            writer.add_tensor(name, tensor)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    renamed = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    renamed |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    renamed |= {"mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm"}
    renamed |= {"model.layers": "blk", "model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    made = {}
    for name, tensor in weights().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        made[name] = tensor
    return made
