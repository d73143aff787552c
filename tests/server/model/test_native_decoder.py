"""The server's decoder over the native kernels: which models it takes, what of a checkpoint it keeps, and what it refuses."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.model import native_decoder
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.llama import Llama
from pagemill_server.model.native_attention import NativeAttention
from pagemill_server.model.native_decoder import NativeLlama
from tests.server.computing import computing, needs_native
from tests.server.model.stepping import GREEDY, load, step_of
from tests.server.model.tiny_families import NATIVE, write_model
from tests.server.model.tiny_families import prompt as prompt_of
from tests.server.tiny import write_tiny_llama

TOKENS = prompt_of(60)


def logits(path: Path, **options: Any) -> torch.Tensor:
    (rows,) = load(path, **options)[1].logits([(0, TOKENS)])
    return rows


@pytest.mark.parametrize(
    ("change", "processes", "taken"),
    [
        ({}, 1, True),
        ({"architecture": "Qwen3ForCausalLM"}, 1, True),
        ({"architecture": "Qwen3MoeForCausalLM"}, 1, False),
        ({"architecture": "Gemma3ForCausalLM"}, 1, False),
        ({"native": False}, 1, False),
        ({}, 2, False),
        ({"head_dim": 24}, 1, False),
        ({"head_dim": 272}, 1, False),
        ({"hidden_size": 72}, 1, False),
    ],
)
def test_which_models_it_takes(tmp_path: Path, change: dict[str, Any], processes: int, taken: bool) -> None:
    config = replace(inspect(write_tiny_llama(tmp_path)).config, **change)
    assert native_decoder.takes(config, processes) is taken


@needs_native
@pytest.mark.parametrize(
    ("shape", "model", "attention"),
    [({}, NativeLlama, NativeAttention), ({"hidden_size": 72}, Llama, NativeAttention)],
    ids=["taken", "by layers"],
)
def test_who_computes(tmp_path: Path, shape: dict[str, Any], model: type, attention: type) -> None:
    folder = write_tiny_llama(tmp_path, **shape)
    runner, _ = load(folder)
    assert (type(runner._model), type(runner._attention)) == (model, attention)
    assert isinstance(runner._attention, NativeAttention)
    pool = runner._attention._pool
    assert pool.data[:, :, :, 1].is_contiguous()  # these kernels read blocks where they lie
    with computing(native=False):
        runner, _ = load(folder)
    assert (type(runner._model), type(runner._attention)) == (Llama, TorchAttention)


@needs_native
@pytest.mark.parametrize("head_dim", [24, 8])
def test_heads_that_the_kernels_have_no_code_for_are_torchs(tmp_path: Path, head_dim: int) -> None:
    folder = write_tiny_llama(tmp_path, head_dim=head_dim)
    runner, _ = load(folder)
    assert isinstance(runner._attention, TorchAttention)
    ours = logits(folder)
    with computing(native=False):
        torch.testing.assert_close(ours, logits(folder), rtol=1e-4, atol=1e-4)


@needs_native
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_is_near_in_every_family(tmp_path: Path, name: str, dtype: str) -> None:
    folder = write_model(tmp_path, *NATIVE[name])
    exact, rounded = logits(folder), logits(folder, quantization="int8", dtype=dtype)
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).abs().mean() < 0.05 * exact.abs().max()


@needs_native
def test_int8_is_each_outputs_largest_weight_in_127_steps(tmp_path: Path) -> None:
    """Embeddings included, where they are the head's."""
    folder = write_tiny_llama(tmp_path)
    runner, _ = load(folder, quantization="int8")
    head = runner._model._decoder._kept[2]  # type: ignore[attr-defined]
    with computing(native=False):
        table = load(folder)[0]._model._vocabulary.embed(torch.arange(264))  # type: ignore[attr-defined]
    kept = torch.stack([head.row(token) for token in range(264)])
    steps = table.abs().amax(1, keepdim=True) / 127
    assert ((kept / steps).round() - kept / steps).abs().max() < 1e-3
    assert ((kept - table).abs() <= steps / 2 * 1.001).all()


@needs_native
@pytest.mark.parametrize("shape", [{}, {"hidden_size": 72}], ids=["whole steps", "by layers"])
def test_what_is_not_there_is_an_error_and_no_memory_is_touched(tmp_path: Path, shape: dict[str, Any]) -> None:
    runner, stepper = load(write_tiny_llama(tmp_path, **shape), memory_bytes=1 << 20)
    good = stepper.schedule(1, [5, 6, 7], GREEDY)
    for wrong in (
        good._replace(token_ids=(5, 6, 999)),
        good._replace(block_table=(10_000,)),
        good._replace(block_table=(-1,)),
    ):
        with pytest.raises(IndexError):
            runner.run(step_of([wrong]))
    assert runner.run(step_of([good])).sampled


@needs_native
def test_the_log_says_what_computes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load(write_tiny_llama(tmp_path, torch_dtype="float16"), quantization="int8")
    assert "float32 arithmetic, weights in int8, native " in caplog.text


def test_without_the_kernels_int8_is_refused_in_one_line(tmp_path: Path) -> None:
    with computing(native=False), pytest.raises(PagemillError, match="make native") as error:
        load(write_tiny_llama(tmp_path), quantization="int8")
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
