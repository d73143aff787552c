"""A tiny random Llama on disk, so that the whole server is tested on a real model in milliseconds.

A folder as Hugging Face lays it out: safetensors, config.json, a tokenizer whose ids 0..255 are the bytes, and a
small ChatML template. Deterministic for a seed. Used by every test of the server; knows nothing of Pagemill's code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT, IM_START, IM_END = 256, 257, 258  # ids after the bytes; IM_END ends a turn (the model's EOS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_config(**overrides: Any) -> dict[str, Any]:
    """A `config.json` of a two-layer GQA Llama with a context of 256 tokens; `overrides` are its fields."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 264,  # more than the tokenizer has, as real models do
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
    }
    return config | overrides


def write_tiny_llama(folder: Path, *, seed: int = 0, shards: int = 1, **overrides: Any) -> Path:
    """Write the model into `folder` (made if missing) and return it.

    `overrides` are fields of config.json (`num_key_value_heads=1`, `tie_word_embeddings=False`, `rope_scaling={…}` …);
    `torch_dtype` is also what the weights are stored in. With `shards` > 1 they lie in that many files with an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**overrides)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(folder, _random_weights(config, seed), shards)
    write_tokenizer(folder)
    return folder


def _random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["torch_dtype"])
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]

    # The scales make greedy text wander instead of repeating one token.
    def random(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    def linear(name: str, out_size: int, in_size: int, bias: bool) -> dict[str, torch.Tensor]:
        made = {f"{name}.weight": random(out_size, in_size, scale=2.0 * in_size**-0.5)}
        return made | ({f"{name}.bias": random(out_size, scale=0.5)} if bias else {})

    weights = {"model.embed_tokens.weight": random(vocab, hidden, scale=0.3)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{norm}.weight"] = 1 + random(hidden, scale=0.2)
        for name, out_size, in_size in (
            ("q_proj", q_size, hidden),
            ("k_proj", kv_size, hidden),
            ("v_proj", kv_size, hidden),
            ("o_proj", hidden, q_size),
        ):
            weights |= linear(f"{layer}.self_attn.{name}", out_size, in_size, config["attention_bias"])
        for name, out_size, in_size in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            weights |= linear(f"{layer}.mlp.{name}", out_size, in_size, config["mlp_bias"])
    weights["model.norm.weight"] = 1 + random(hidden, scale=0.2)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random(vocab, hidden, scale=0.3)
    return weights


def _write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    place: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        place |= dict.fromkeys(part, file_name)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table), by byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
