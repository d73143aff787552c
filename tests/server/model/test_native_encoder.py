"""Which encoders the native kernels compute, what they keep of a checkpoint, and what that takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemill.embedding_config import EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.memory import StartMemory
from pagemill_server.model.device import Placement, place_encoder
from pagemill_server.model.encoder import EncoderRunner
from pagemill_server.model.load_encoder import load_encoder
from pagemill_server.model.native_encoder import takes
from tests.server.computing import computing, needs_native
from tests.server.tiny_bert import write_tiny_encoder

pytestmark = needs_native


def options(**fields: Any) -> ModelOptions:
    given: dict[str, Any] = {"device": "cpu", "max_model_len": 64, **fields}
    return ModelOptions("tiny", ("tiny",), **given)


def placed(folder: Path, **fields: Any) -> Placement:
    files = inspect(folder)
    assert isinstance(files.config, EncoderConfig)
    return place_encoder(options(**fields), files, native=takes(files.config))


def loaded(files: ModelFiles, **fields: Any) -> tuple[EncoderRunner, StartMemory]:
    assert isinstance(files.config, EncoderConfig)
    kinds = EmbeddingConfig("mean"), options(**fields), CacheConfig(), SchedulerConfig()
    runner, _, memory = load_encoder(files, files.config, *kinds, lambda done, total: None)
    return runner, memory


def narrowed(folder: Path, dtype: torch.dtype) -> Path:
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def states(runner: EncoderRunner) -> torch.Tensor:
    ids = tuple(range(10, 60))
    text = ScheduledSequence(0, ids, 0, (), None, seed=0, output_position=0, pooling=True)
    return runner.hidden(SchedulerOutput((text,), len(ids)))[0]


@pytest.mark.parametrize(
    ("dtype", "native"), [("auto", True), ("float32", True), ("bfloat16", False), ("float16", False)]
)
def test_float32_is_the_kernels(tmp_path: Path, dtype: str, native: bool) -> None:
    found = placed(write_tiny_encoder(tmp_path), dtype=dtype)
    assert (found.kernels is not None) is native
    assert found.dtype is (torch.float32 if dtype == "auto" else getattr(torch, dtype))


def test_other_sizes_and_no_kernels_are_torchs(tmp_path: Path) -> None:
    assert placed(write_tiny_encoder(tmp_path / "narrow", num_attention_heads=8)).kernels is None
    folder = write_tiny_encoder(tmp_path / "tiny")
    with computing(native=False):
        assert placed(folder).kernels is None


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_sixteen_bits_are_kept_unless_float32_is_asked_for(tmp_path: Path, dtype: torch.dtype, kept: str) -> None:
    folder = narrowed(write_tiny_encoder(tmp_path), dtype)
    assert (placed(folder).weights, placed(folder).dtype) == (kept, torch.float32)
    assert placed(folder, dtype="float32").weights == "float32"
    with computing(native=False):
        judge = states(loaded(inspect(folder))[0])
    for asked in ("auto", "float32"):
        runner, _ = loaded(inspect(folder), dtype=asked)
        assert (states(runner) - judge).abs().max() < 2e-5


def test_int8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagemillError, match="can't be quantised") as caught:
        loaded(inspect(write_tiny_encoder(tmp_path)), quantization="int8")
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_step_takes_no_more_than_predicted_and_weights_as_much(tmp_path: Path, dtype: torch.dtype) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
    }
    with computing(threads=2):
        _, start = loaded(inspect(narrowed(write_tiny_encoder(tmp_path, **shape), dtype)))
    assert start.measured.weights is not None
    assert start.measured.weights == pytest.approx(start.fit.weights_bytes, rel=0.1)
    if start.measured.activation is not None:
        assert start.measured.activation <= start.fit.activation_bytes
