"""The families that can be computed are those that a checkpoint's description lets through, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.gguf_config import GGUF_ARCHITECTURES
from pagemill.model_config import RopeScaling
from pagemill.model_files import inspect
from pagemill.native_families import FAMILIES as READ
from pagemill.rope_reading import ROPE_KINDS
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.families import FAMILIES, make_model
from pagemill_server.model.rope import make_table
from tests.server.tiny import write_tiny_llama


def test_every_architecture_that_is_let_through_has_a_family() -> None:
    assert set(FAMILIES) == set(READ)
    assert set(GGUF_ARCHITECTURES.values()) <= set(FAMILIES)


@pytest.mark.parametrize("kind", ROPE_KINDS)
def test_every_rope_scaling_that_is_let_through_is_implemented(tmp_path: Path, kind: str) -> None:
    config = replace(inspect(write_tiny_llama(tmp_path)).config, rope_scaling=RopeScaling(kind, 2.0))
    assert make_table(config, 4, torch.float32, torch.device("cpu")).cos.shape == (4, 16)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    files = inspect(write_tiny_llama(tmp_path))
    checkpoint = Checkpoint(files, torch.float32, torch.device("cpu"))
    with pytest.raises(PagemillError) as caught:
        make_model(checkpoint, replace(files.config, architecture="OPTForCausalLM"), 10)
    assert caught.value.failure.reason == FailureReason.UNSUPPORTED_ARCHITECTURE
    assert "OPTForCausalLM" in str(caught.value)
