"""The model's logits equal transformers' own, for every shape of the family, whole and through the paged cache in chunks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.server.model.stepping import load
from tests.server.tiny import write_tiny_llama

pytestmark = pytest.mark.usefixtures("native")

# The largest difference measured over all shapes below is 2.5e-5, at logits up to 15 (float32 keeps 7 digits).
BOUND = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "gqa 9/3 with heads of 64": {
        "hidden_size": 144,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "wide inner": {"intermediate_size": 1536},
    "eps": {"rms_norm_eps": 1e-2},
}


def judge(folder: Path) -> torch.nn.Module:
    """transformers' model of the same files, in float32."""
    raw = json.loads((folder / "config.json").read_text())
    if raw["architectures"] == ["MistralForCausalLM"]:
        return MistralForCausalLM.from_pretrained(folder, config=MistralConfig(**raw), dtype=torch.float32).eval()
    return LlamaForCausalLM.from_pretrained(folder, config=LlamaConfig(**raw), dtype=torch.float32).eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 264, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_whole_prompts_and_chunks_and_single_tokens_give_transformers_logits(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    folder = write_tiny_llama(tmp_path, **shape)
    tokens = prompt(150)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder)
    (whole,) = stepper.logits([(0, tokens)])
    assert (whole - theirs).abs().max() < BOUND
    cuts = [0, 37, 38, 90, 120, *range(121, 151)]
    for first, last in pairwise(cuts):
        (part,) = stepper.logits([(1, tokens[first:last])])
        assert (part - theirs[first:last]).abs().max() < BOUND


def test_mistral_within_its_window_is_the_same_model(tmp_path: Path) -> None:
    folder = write_tiny_llama(
        tmp_path,
        architectures=["MistralForCausalLM"],
        model_type="mistral",
        sliding_window=128,
        tie_word_embeddings=False,
    )
    tokens = prompt(128)
    _, stepper = load(folder)
    (ours,) = stepper.logits([(0, tokens)])
    assert (ours - expected(judge(folder), tokens)).abs().max() < BOUND


def test_a_sequence_longer_than_several_tiles_gives_transformers_logits(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, max_position_embeddings=1024)
    tokens = prompt(900)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder)
    (part,) = stepper.logits([(0, tokens[:600])])
    assert (part - theirs[:600]).abs().max() < BOUND
    for position in (600, 601):
        (part,) = stepper.logits([(0, tokens[position : position + 1])])
        assert (part - theirs[position]).abs().max() < BOUND
    (part,) = stepper.logits([(0, tokens[602:])])
    assert (part - theirs[602:]).abs().max() < BOUND


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near(tmp_path: Path, dtype: str) -> None:
    folder = write_tiny_llama(tmp_path, torch_dtype=dtype)
    tokens = prompt(100)
    theirs = expected(judge(folder), tokens)
    for asked, bound in (("float32", BOUND), (dtype, 1.5)):  # the files' own weights, computed wide and narrow
        _, stepper = load(folder, dtype=asked)
        (ours,) = stepper.logits([(0, tokens)])
        assert (ours - theirs).abs().max() < bound
        assert (ours - theirs).abs().mean() < bound / 10
