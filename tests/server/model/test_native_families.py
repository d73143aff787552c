"""Native families give transformers' logits: whole prompts, chunks and single tokens, beyond the window, from bfloat16 files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill.model_files import inspect
from pagemill.native_families import FAMILIES
from tests.server.model.stepping import load
from tests.server.model.tiny_families import COMMON, NATIVE, expected, judge, prompt, write_model

pytestmark = pytest.mark.usefixtures("native")

# Of logits up to 40; float32 keeps 7 digits. Our kernels add each product up in one chain: 1.01e-4 was the most that was seen.
BOUND = 2e-4
CUTS = [0, 30, 41, 42, 100, *range(140, 151)]  # windows are 40 tokens


@pytest.mark.parametrize("name", NATIVE)
def test_chunks_beyond_the_window_give_transformers_logits(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, *NATIVE[name])
    tokens = prompt(150)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder)
    (whole,) = stepper.logits([(0, tokens)])
    assert (whole - theirs).abs().max() < BOUND
    for first, last in pairwise(CUTS):
        (part,) = stepper.logits([(1, tokens[first:last])])
        assert torch.equal(part, whole[first:last])


@pytest.mark.parametrize("name", ["mistral with a window", "qwen2 with windows", "qwen3", "qwen3 moe", "gemma3"])
def test_a_model_stored_in_bfloat16_is_computed_as_its_weights_are(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, *NATIVE[name], dtype="bfloat16")
    tokens = prompt(100)
    _, stepper = load(folder, dtype="float32")
    (ours,) = stepper.logits([(0, tokens)])
    assert (ours - expected(judge(folder), tokens)).abs().max() < BOUND


@pytest.mark.parametrize("name", ["qwen2 with windows", "qwen3", "gemma3"])
def test_bfloat16_is_near(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, *NATIVE[name], dtype="bfloat16")
    tokens = prompt(100)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder, dtype="bfloat16")
    (ours,) = stepper.logits([(0, tokens)])
    assert (ours - theirs).abs().mean() < 0.03 * theirs.abs().max()


@pytest.mark.parametrize("name", NATIVE)
def test_parameters_and_cache_are_counted_as_they_are(tmp_path: Path, name: str) -> None:
    files = inspect(write_model(tmp_path, *NATIVE[name]))
    config = files.config
    assert config.native
    assert config.num_parameters() * 4 == files.weights_bytes
    runner, _ = load(tmp_path, memory_bytes=1 << 20)
    keys = runner._attention._pool.keys  # type: ignore[attr-defined]
    assert len(keys) == config.num_hidden_layers
    heads, _, _, head_dim = keys[0].shape
    assert config.kv_bytes_per_token(4) == len(keys) * 2 * heads * head_dim * 4


@pytest.mark.parametrize("name", NATIVE)
def test_windows_are_those_that_transformers_gives_each_layer(tmp_path: Path, name: str) -> None:
    config = inspect(write_model(tmp_path, *NATIVE[name])).config
    theirs = judge(tmp_path).config
    window, types = getattr(theirs, "sliding_window", None), getattr(theirs, "layer_types", None)
    for layer in range(config.num_hidden_layers):
        slides = types is None or types[layer] == "sliding_attention"
        assert config.window(layer) == (window if slides else None)


# As the hub has them, in the spelling of transformers 4; only what differs from the common fields.
HUB: dict[str, dict[str, Any]] = {
    "Mistral 7B v0.1": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 40},
    "Qwen2 with its window off": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
        "sliding_window": 40, "max_window_layers": 2, "rope_theta": 1000000.0,
    },
    "Qwen2 with yarn": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "Qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "rope_theta": 1000000},
    "Gemma 3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 32, "sliding_window": 40,
        "sliding_window_pattern": 2, "query_pre_attn_scalar": 32, "rope_theta": 1000000.0, "num_key_value_heads": 1,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HUB)
def test_configs_in_the_older_spelling_are_the_same_models(tmp_path: Path, name: str) -> None:
    raw = COMMON | HUB[name]
    family = raw["architectures"][0].removesuffix("ForCausalLM")
    write_model(
        tmp_path, family, {"head_dim": raw.get("head_dim", 16), "num_key_value_heads": raw["num_key_value_heads"]}
    )
    (tmp_path / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": family == "Gemma3"}))
    tokens = prompt(150)
    _, stepper = load(tmp_path)
    (ours,) = stepper.logits([(0, tokens)])
    assert (ours - expected(judge(tmp_path), tokens)).abs().max() < BOUND


def test_every_native_architecture_is_tested() -> None:
    assert {f"{family}ForCausalLM" for family, _ in NATIVE.values()} == set(FAMILIES)
