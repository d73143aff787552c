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
from pagemill_kernels.native import build
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.memory import StartMemory
from pagemill_server.model import device
from pagemill_server.model.device import Placement, place_encoder
from pagemill_server.model.encoder import EncoderRunner
from pagemill_server.model.load_encoder import load_encoder
from pagemill_server.model.native_encoder import takes
from tests.server.computing import computing, needs_native, without_bfloat16
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


@pytest.mark.parametrize(("dtype", "native"), [("float32", True), ("bfloat16", True), ("float16", False)])
def test_what_is_asked_for_is_the_kernels_where_they_have_it(tmp_path: Path, dtype: str, native: bool) -> None:
    found = placed(write_tiny_encoder(tmp_path), dtype=dtype)
    assert (found.kernels is not None) is native
    assert found.dtype is getattr(torch, dtype)
    assert (found.weights, found.table) == (dtype, dtype)


@pytest.mark.parametrize(
    ("vendor", "fast"), [("GenuineIntel", {"amx_bf16"}), ("AuthenticAMD", {"amx_bf16", "avx512_bf16"})]
)
@pytest.mark.parametrize("kernels", build.INSTRUCTION_SETS)
def test_left_to_us_it_is_bfloat16_where_that_is_fast(
    tmp_path: Path, kernels: str, vendor: str, fast: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.native_kernels, "instruction_set", lambda: kernels)
    monkeypatch.setattr(device, "processor_vendor", lambda: vendor)
    found = placed(write_tiny_encoder(tmp_path))
    assert found.kernels == kernels
    assert found.dtype is (torch.bfloat16 if kernels in fast else torch.float32)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_other_sizes_and_no_kernels_are_torchs(tmp_path: Path, dtype: str) -> None:
    narrow = placed(write_tiny_encoder(tmp_path / "narrow", num_attention_heads=8), dtype=dtype)
    folder = write_tiny_encoder(tmp_path / "tiny")
    with computing(native=False):
        without = placed(folder, dtype=dtype)
    for found in (narrow, without):
        assert found.kernels is None
        assert found.dtype is (torch.float32 if dtype == "auto" else torch.bfloat16)


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_sixteen_bits_are_kept_unless_float32_is_asked_for(tmp_path: Path, dtype: torch.dtype, kept: str) -> None:
    folder = narrowed(write_tiny_encoder(tmp_path), dtype)
    assert placed(folder, dtype="float32").weights == "float32"
    with computing(native=False):
        judge = states(loaded(inspect(folder))[0])
    assert (states(loaded(inspect(folder), dtype="float32")[0]) - judge).abs().max() < 2e-5
    with without_bfloat16():
        assert (placed(folder).weights, placed(folder).dtype) == (kept, torch.float32)
        assert (states(loaded(inspect(folder))[0]) - judge).abs().max() < 2e-5


def test_bfloat16_is_near(tmp_path: Path) -> None:
    """Their states are of float32 whatever they are computed in."""
    folder = write_tiny_encoder(tmp_path)
    judge, rounded = (states(loaded(inspect(folder), dtype=dtype)[0]) for dtype in ("float32", "bfloat16"))
    assert rounded.dtype is torch.float32
    assert 0 < (rounded - judge).abs().max() < 1.2e-2 * judge.abs().max()


def test_int8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagemillError, match="can't be quantised") as caught:
        loaded(inspect(write_tiny_encoder(tmp_path)), quantization="int8")
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_step_takes_no_more_than_predicted_and_weights_as_much(
    tmp_path: Path, dtype: torch.dtype, asked: str
) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
    }
    with computing(threads=2):
        _, start = loaded(inspect(narrowed(write_tiny_encoder(tmp_path, **shape), dtype)), dtype=asked)
    assert start.measured.weights is not None
    assert start.measured.weights == pytest.approx(start.fit.weights_bytes, rel=0.1)
    if start.measured.activation is not None:
        assert start.measured.activation <= start.fit.activation_bytes


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_nor_does_one_long_text_on_more_threads_than_its_heads(tmp_path: Path, asked: str) -> None:
    """What a thread gathers of attention is as long as the longest text: no more threads may have it than compute."""
    shape = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 4096}
    files = inspect(write_tiny_encoder(tmp_path, sentence={}, **shape))
    with computing(threads=128):
        _, start = loaded(files, dtype=asked, max_model_len=4096)
    if start.measured.activation is not None:
        assert start.measured.activation <= start.fit.activation_bytes
