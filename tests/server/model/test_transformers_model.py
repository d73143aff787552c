"""Decoders without a native family, through transformers' code and our attention: its logits, or refused by name at the start."""

from __future__ import annotations

import json
import logging
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill.transformers_names import DECODERS
from pagemill_server import LLM, SamplingParams
from tests.server.model.stepping import load
from tests.server.model.tiny_families import expected, judge, prompt, write_model

BOUND = 1e-4
CUTS = [0, 30, 41, 42, 100, *range(140, 151)]
# Different in what surrounds attention: partial rotation, layer norms and biases, fused or transposed weights, multipliers,
# learned positions, a window, layers without positions, experts.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": (
        "GPTNeoX",
        {"num_key_value_heads": None, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "starcoder2 with a window": ("Starcoder2", {"sliding_window": 40, "use_bias": True}),
    "granite": ("Granite", {"attention_multiplier": 0.2, "logits_scaling": 3.0, "residual_multiplier": 0.4}),
    "olmo3, windows in turn": ("Olmo3", {"sliding_window": 40}),
    "smollm3": ("SmolLM3", {"use_sliding_window": False}),
    "opt": ("OPT", {"num_key_value_heads": None, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "num_key_value_heads": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
}


def refusal(folder: Path) -> str:
    with pytest.raises(PagemillError) as caught:
        load(folder)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE
    return str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_beyond_the_window_give_transformers_logits(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, *MODELS[name])
    tokens = prompt(150)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder)
    (whole,) = stepper.logits([(0, tokens)])
    assert (whole - theirs).abs().max() < BOUND
    for first, last in pairwise(CUTS):
        (part,) = stepper.logits([(1, tokens[first:last])])
        assert (part - theirs[first:last]).abs().max() < BOUND


@pytest.mark.parametrize("name", ["gpt-neox", "starcoder2 with a window"])
def test_sequences_that_share_steps_give_transformers_logits(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, *MODELS[name])
    model = judge(folder)
    prompts = {index: prompt(length, seed=index) for index, length in enumerate((3, 90, 64, 17))}
    _, stepper = load(folder, block_size=24)
    first = {index: len(tokens) // 2 for index, tokens in prompts.items()}
    stepper.logits([(index, tokens[: first[index]]) for index, tokens in prompts.items()])
    rest = stepper.logits([(index, tokens[first[index] :]) for index, tokens in reversed(prompts.items())])
    for index, logits in zip(reversed(prompts), rest, strict=True):
        assert (logits - expected(model, prompts[index])[first[index] :]).abs().max() < BOUND


@pytest.mark.parametrize("name", ["gpt-neox", "starcoder2 with a window"])
def test_through_the_engine_greedy_tokens_are_transformers(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path, *MODELS[name])
    model = judge(folder)
    with caplog.at_level(logging.INFO):
        llm = LLM(str(folder), kv_cache_memory_bytes=16 << 20)
    assert sum("which is slower" in record.message for record in caplog.records) == 1
    prompts = [prompt(length, seed=length) for length in (50, 3)]
    outs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    llm.close()
    for tokens, out in zip(prompts, outs, strict=True):
        known = list(tokens)
        for _ in range(12):
            known.append(int(expected(model, known)[-1].argmax()))
        assert list(out.outputs[0].token_ids) == known[len(tokens) :]


def test_parameters_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    files = inspect(write_model(tmp_path, *MODELS["gpt-neox"]))
    assert files.config.num_parameters() * 4 == files.weights_bytes


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("DiffLlama", {}, "attends twice"),
        ("Doge", {"keep_window_size": 2048}, "way of its own"),
        ("Flint", {"head_dim": 16}, "s_aux"),
        ("StableLm", {}, "no interface"),
    ],
)
def test_what_a_config_cant_tell_is_refused_when_it_is_loaded(
    tmp_path: Path, family: str, fields: dict[str, Any], named: str
) -> None:
    assert named in refusal(write_model(tmp_path, family, fields))


def change(folder: Path, **fields: Any) -> Path:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | fields))
    return folder


def test_an_architecture_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = change(write_model(tmp_path, *MODELS["gpt-neox"]), architectures=["NewForCausalLM"], model_type="new")
    assert "NewForCausalLM" in refusal(folder)


def test_another_models_weights_are_refused(tmp_path: Path) -> None:
    folder = change(write_model(tmp_path, *MODELS["gpt-neox"]), num_hidden_layers=5)
    assert "missing_keys" in refusal(folder)


def test_without_transformers_the_refusal_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path, *MODELS["gpt-neox"])
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'pagemill[transformers]'" in refusal(folder)


def test_the_names_of_decoders_are_transformers_own() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    theirs = {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}
    assert theirs >= DECODERS
    assert {name for name in theirs if name.endswith(("ForCausalLM", "LMHeadModel"))} == DECODERS


def test_bfloat16_is_near(tmp_path: Path) -> None:
    folder = write_model(tmp_path, *MODELS["gpt-neox"], dtype="bfloat16")
    tokens = prompt(60)
    theirs = expected(judge(folder), tokens)
    _, stepper = load(folder, dtype="bfloat16")
    (ours,) = stepper.logits([(0, tokens)])
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().mean() < 0.03 * theirs.abs().max()
