"""Tiny random models of any family on disk, made and saved by transformers itself, which is then their judge.

Weights are drawn so that logits wander; a tokenizer is there as `tests.server.tiny` writes it. Knows nothing of Pagemill's code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.server.tiny import write_tokenizer

COMMON: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": None,
}
KEPT = ("pad_token_id", "sliding_window")  # None says something there
WINDOWS = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}
# name: (the class's name without "ForCausalLM" or "Config", fields of its config)
NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 40}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows": ("Qwen2", WINDOWS),
    "qwen2 with types": (
        "Qwen2",
        WINDOWS | {"layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 with windows and biases": ("Qwen3", WINDOWS | {"head_dim": 24, "attention_bias": True}),
    "qwen3 moe": (
        "Qwen3Moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "qwen3 moe, some layers dense": (
        "Qwen3Moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "use_sliding_window": True,
            "sliding_window": 40,
            "head_dim": 32,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "sliding_window": 40,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 23,
            "head_dim": 32,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3 untied": ("Gemma3", {"sliding_window": 500, "head_dim": 16, "tie_word_embeddings": False}),
}


def write_model(folder: Path, family: str, fields: dict[str, Any], dtype: str = "float32", seed: int = 0) -> Path:
    """Write a random model of a family into `folder` and return it. A field of None takes a common one away."""
    config_name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_name)(
        **{name: value for name, value in (COMMON | fields).items() if value is not None or name in KEPT}
    )
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    model = getattr(transformers, family + head)(config)
    _randomise(model, family, seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def judge(folder: Path, **options: Any) -> torch.nn.Module:
    """transformers' model of the same files, in float32."""
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    )
    return model.eval()


@torch.no_grad()
def expected(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """The logits of every token of a prompt, float32 [tokens, vocab_size]."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    tokens: list[int] = torch.randint(0, 264, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


@torch.no_grad()
def _randomise(model: torch.nn.Module, family: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        random = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() == 1:
            centre = 0.0 if family == "Gemma3" or name.endswith("bias") else 1.0
            tensor.copy_(centre + 0.2 * random)
        else:
            embeds = "embed" in name or "lm_head" in name or "wte" in name or "wpe" in name
            tensor.copy_(random * (0.3 if embeds else 2.0 * tensor.shape[-1] ** -0.5))
