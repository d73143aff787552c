"""Rotation tables against transformers' own, and the refusal of what is not implemented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig, RopeScaling
from pagemill.model_files import inspect
from pagemill_server.model.rope import make_table
from tests.server.tiny import tiny_config, write_tiny_llama

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def config(folder: Path, **overrides: Any) -> ModelConfig:
    return inspect(write_tiny_llama(folder, **overrides)).config


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"rope_theta": 500000.0, "head_dim": 64},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}},
        {
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192},
            "max_position_embeddings": 131072,
            "head_dim": 128,
        },
        {"rope_scaling": YARN},
        {"rope_scaling": YARN | {"factor": None, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False}},
        {"rope_scaling": YARN | {"attention_factor": 1.5}, "rope_theta": 1e6, "head_dim": 128},
        {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    ],
    ids=str,
)
def test_tables_are_transformers(tmp_path: Path, shape: dict[str, Any]) -> None:
    table = make_table(config(tmp_path, **shape), 300, torch.float32, CPU)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**tiny_config(**shape)))
    cos, sin = theirs(torch.zeros(1), torch.arange(300)[None])
    half = sin.shape[-1] // 2
    assert torch.equal(table.cos, cos[0])
    assert torch.equal(table.sin[:, half:], sin[0, :, half:])
    assert torch.equal(table.sin[:, :half], -sin[0, :, :half])


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_other_kinds_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    stretched = replace(config(tmp_path), rope_scaling=RopeScaling(kind, 2.0))
    with pytest.raises(PagemillError) as caught:
        make_table(stretched, 10, torch.float32, CPU)
    assert caught.value.failure.reason == FailureReason.UNSUPPORTED_ARCHITECTURE
    assert kind in str(caught.value)
