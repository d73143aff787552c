"""Weights from every layout: one file, shards, GGUF in several types; progress in bytes; what is wrong is said, not computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.model.checkpoint import Checkpoint
from tests.server.computing import needs_native, without_bfloat16
from tests.server.model.stepping import load
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_gguf import write_tiny_gguf

TOKENS = list(range(3, 90))


@pytest.fixture
def float32_is_left_to_us() -> Iterator[None]:
    with without_bfloat16():
        yield


def logits(path: Path, dtype: str = "float32") -> torch.Tensor:
    _, stepper = load(path, dtype=dtype)
    (rows,) = stepper.logits([(0, TOKENS)])
    return rows


def edit_weights(folder: Path, edit: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def test_shards_are_the_same_model_as_one_file(tmp_path: Path) -> None:
    one = write_tiny_llama(tmp_path / "one", tie_word_embeddings=False)
    three = write_tiny_llama(tmp_path / "three", tie_word_embeddings=False, shards=3)
    assert not (three / "model.safetensors").exists()
    assert torch.equal(logits(one), logits(three))


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tie_word_embeddings": False, "num_key_value_heads": 4},
        {"attention_bias": True},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
    ids=str,
)
def test_a_gguf_is_the_same_model_as_its_safetensors(tmp_path: Path, shape: dict[str, Any]) -> None:
    """The converter reorders q and k for llama.cpp's rotation; the loader must undo it."""
    path = write_tiny_gguf(tmp_path, **shape)
    assert torch.equal(logits(path), logits(tmp_path / "source"))


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_a_quantised_gguf_is_the_model_of_its_dequantised_weights(tmp_path: Path, quantization: str) -> None:
    path = write_tiny_gguf(tmp_path, quantization=quantization)
    kind = gguf.GGMLQuantizationType[quantization]

    def round_trip(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in weights.items():
            if tensor.ndim == 2:
                weights[name] = torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind).copy())

    before = logits(tmp_path / "source")
    edit_weights(tmp_path / "source", round_trip)
    assert torch.equal(logits(path), logits(tmp_path / "source"))
    assert not torch.equal(before, logits(path))


@needs_native
@pytest.mark.usefixtures("float32_is_left_to_us")
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_1"])
def test_left_to_us_what_a_gguf_has_quantised_is_kept_in_16_bits(tmp_path: Path, quantization: str) -> None:
    path = write_tiny_gguf(tmp_path, quantization=quantization)
    kind = gguf.GGMLQuantizationType[quantization]

    def round_trip(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in weights.items():
            if tensor.ndim == 2:
                weights[name] = torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind).copy()).half().float()

    edit_weights(tmp_path / "source", round_trip)
    assert torch.equal(logits(path, "auto"), logits(tmp_path / "source"))
    assert not torch.equal(logits(path), logits(tmp_path / "source"))


@needs_native
@pytest.mark.usefixtures("float32_is_left_to_us")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tied", [True, False])
def test_left_to_us_16_bits_are_kept_and_change_nothing(tmp_path: Path, dtype: str, tied: bool) -> None:
    path = write_tiny_llama(tmp_path, torch_dtype=dtype, tie_word_embeddings=tied, attention_bias=True)
    assert torch.equal(logits(path, "auto"), logits(path))


def test_a_ggufs_frequency_factors_stretch_the_rotation(tmp_path: Path) -> None:
    """Llama 3's scaling comes as divisors in a GGUF; dividing all frequencies by 4 is linear scaling by 4."""
    factors = write_tiny_gguf(tmp_path / "factors", rope_freqs=[4.0] * 8)
    linear = write_tiny_llama(tmp_path / "linear", rope_scaling={"rope_type": "linear", "factor": 4.0})
    plain = write_tiny_llama(tmp_path / "plain")
    assert torch.equal(logits(factors), logits(linear))
    assert not torch.equal(logits(factors), logits(plain))


def test_progress_counts_every_stored_byte_once(tmp_path: Path) -> None:
    files = inspect(write_tiny_llama(tmp_path))
    told: list[tuple[int, int]] = []
    checkpoint = Checkpoint(files, torch.float32, torch.device("cpu"), lambda done, total: told.append((done, total)))
    for name, info in files.tensors.items():
        checkpoint.take(name, *info.shape)
    checkpoint.finish()
    assert told[0] == (0, files.weights_bytes)
    assert told[-2:] == [(files.weights_bytes, files.weights_bytes)] * 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_large_tensor_is_told_of_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagemill_server.model.checkpoint._READ", 1000)
    files = inspect(write_tiny_llama(tmp_path))
    told: list[int] = []
    checkpoint = Checkpoint(files, torch.float32, torch.device("cpu"), lambda done, total: told.append(done))
    taken = checkpoint.take("model.embed_tokens.weight", 264, 64)
    assert told == [*range(0, 264 * 64 * 4, 1000), 264 * 64 * 4]
    assert torch.equal(taken, load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"])


def refused(path: Path) -> PagemillError:
    with pytest.raises(PagemillError) as caught:
        load(path)
    return caught.value


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    edit_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    error = refused(folder)
    assert error.failure.reason == FailureReason.MODEL_INVALID
    assert "model.layers.1.mlp.up_proj.weight is missing" in str(error)


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, attention_bias=True)
    edit_weights(folder, lambda weights: weights.pop("model.layers.0.self_attn.o_proj.bias"))
    assert "self_attn.o_proj.bias is missing" in str(refused(folder))


def test_a_wrong_shape_names_both(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(63)}))
    assert "model.norm.weight has shape [63], the config asks for [64]" in str(refused(folder))


def test_weights_that_the_architecture_does_not_have_are_refused(tmp_path: Path) -> None:
    """Qwen's query and key norms under a Llama config, say: computed without them the answers would be noise."""
    folder = write_tiny_llama(tmp_path)
    edit_weights(folder, lambda weights: weights.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}))
    error = refused(folder)
    assert error.failure.reason == FailureReason.UNSUPPORTED_ARCHITECTURE
    assert "self_attn.q_norm.weight" in str(error)


def test_what_can_be_recomputed_may_be_there(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    before = logits(folder)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.ones(264, 64)}
    edit_weights(folder, lambda weights: weights.update(extra))
    assert torch.equal(logits(folder), before)  # tied: the head is the embedding, whatever else is stored


def test_integer_weights_in_safetensors_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    assert "stored as I8" in str(refused(folder))


def test_a_file_that_shrinks_after_it_was_described_is_named(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    files = inspect(folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    last = max(files.tensors.values(), key=lambda info: info.offset)
    checkpoint = Checkpoint(files, torch.float32, torch.device("cpu"))
    with pytest.raises(PagemillError) as caught:
        checkpoint.take(last.name, *last.shape)
    assert caught.value.failure.reason == FailureReason.MODEL_TRUNCATED


def test_a_config_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    assert "model.layers.1" in str(refused(folder))
