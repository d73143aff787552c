"""Turns GGUF metadata into a `ModelConfig`, refusing what would be run wrongly. Called by `model_files.inspect`.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Shapes that the file states twice are taken from the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagemill.config_reading import DAMAGE, check, refused, token_ids
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
from pagemill.tensor_info import TensorInfo

GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}


def from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: Path) -> ModelConfig:
    """Read a GGUF's metadata; raises PagemillError that names the file."""
    family = str(metadata.get("general.architecture", "unknown"))
    if family not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise refused(
            where,
            f"its architecture is {family}; of GGUF files these can be served: {known}. Use its safetensors files",
        )
    if metadata.get(f"{family}.expert_count"):
        raise refused(where, "it is a mixture of experts, which is not supported in GGUF files")
    try:
        scaling = str(metadata.get(f"{family}.rope.scaling.type", "none"))
        if scaling not in ("none", "linear") and "rope_freqs.weight" not in tensors:
            raise refused(where, f"its RoPE scaling {scaling} is not supported (linear is)")
        config = _read(family, metadata, tensors)
        check(config)
    except DAMAGE as error:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{where} has incomplete metadata: {error!r}") from None
    return config


def _read(family: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{family}.{key}", default)
        if found is None:
            raise KeyError(f"{family}.{key}")
        return found

    hidden, heads = int(value("embedding_length")), int(value("attention.head_count"))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    biased = "blk.0.attn_q.bias" in tensors
    return ModelConfig(
        architecture=GGUF_ARCHITECTURES[family],
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=int(value("feed_forward_length")),
        num_hidden_layers=int(value("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(value("attention.head_count_kv", heads)),
        head_dim=int(value("attention.key_length", hidden // heads)),
        max_position_embeddings=int(value("context_length")),
        rms_norm_eps=float(value("attention.layer_norm_rms_epsilon")),
        rope_theta=float(value("rope.freq_base", 10000.0)),
        rope_scaling=_rope_scaling(family, metadata, tensors),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias=biased,
        output_bias=biased,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        sliding_window=None,
        dtype=tensors["blk.0.attn_q.weight"].dtype,
        bos_token_id=None if bos is None else int(bos),
        eos_token_ids=token_ids(
            [metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")]
        ),
    )


def _rope_scaling(family: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> RopeScaling | None:
    if "rope_freqs.weight" in tensors:
        return RopeScaling("factors", 1.0)  # llama3's stretch, stored as a divisor per frequency in that tensor
    if metadata.get(f"{family}.rope.scaling.type", "none") == "none":
        return None
    return RopeScaling("linear", float(metadata[f"{family}.rope.scaling.factor"]))
