"""The widest step is as wide as a scheduler may ask for, and what is reserved for it is enough."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from pagemill.model_files import ModelFiles, inspect
from pagemill_kernels.native.matrix import Pool
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.memory import StartMemory
from pagemill_server.model import load as load_module
from pagemill_server.model import part, profile
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.interface import LayerAttention
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.load import load_runner
from pagemill_server.model.native_attention import NativeAttention
from pagemill_server.model.profile import Widest, widest_step
from tests.server.computing import needs_native
from tests.server.real_model import real_model
from tests.server.tiny import write_tiny_llama

MIB = 1 << 20


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 64, 512, 2048])
@pytest.mark.parametrize("max_seqs", [1, 2, 3, 64])
@pytest.mark.parametrize("max_len", [1, 2, 20, 256])
def test_the_bounds_are_reached_and_kept(max_tokens: int, max_seqs: int, max_len: int) -> None:
    step = widest_step(Widest(max_tokens, max_seqs, max_len, 16))
    assert len(step.sequences) == min(max_seqs, max_tokens)
    assert step.num_tokens == min(max_tokens, max_seqs * max_len)
    for sequence in step.sequences:
        assert sequence.sampling is not None
        assert set(sequence.block_table) == {0}
        assert 0 < len(sequence.token_ids) <= (end := sequence.start + len(sequence.token_ids)) <= max_len
        assert len(sequence.block_table) == -(-end // 16)
    assert max(s.start + len(s.token_ids) for s in step.sequences) == max_len


def memory_of(files: ModelFiles, **options: object) -> StartMemory:
    settings = ModelOptions(str(files.path), ("m",), **options)  # type: ignore[arg-type]
    cache = CacheConfig(memory_bytes=512 * MIB)
    return load_runner(files, settings, cache, SchedulerConfig(), lambda done, total: None)[2]


def measured_at_a_start(files: ModelFiles, **options: object) -> StartMemory:
    """In a process of its own, as a server starts: what earlier tests have left in this one may go while the model comes in, and
    the model would seem to take less by that."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(memory_of, files, **options).result()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("native")
def test_what_is_predicted_covers_the_tiny_models_step(tmp_path: Path, dtype: str) -> None:
    memory = measured_at_a_start(inspect(write_tiny_llama(tmp_path)), dtype=dtype)
    if memory.measured.activation is None:
        pytest.skip("this kernel does not let a process reset its peak")
    assert memory.measured.activation <= memory.predicted.activation  # type: ignore[operator]
    assert memory.predicted.activation < 64 * MIB  # type: ignore[operator]  # nearly all of it the libraries' own


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("native")
def test_what_is_predicted_covers_the_real_models_step_and_weights(dtype: str) -> None:
    cover(measured_at_a_start(real_model(), dtype=dtype))


@needs_native
@pytest.mark.model
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_so_it_does_with_smaller_weights(quantization: str) -> None:
    cover(measured_at_a_start(real_model(), dtype="auto", quantization=quantization))


def cover(memory: StartMemory) -> None:
    predicted, measured = memory.predicted, memory.measured
    if measured.activation is None or measured.weights is None:
        pytest.skip("this kernel does not let a process reset its peak")
    assert predicted.activation is not None
    assert predicted.weights is not None
    assert measured.activation <= predicted.activation < 4 * measured.activation
    # The weights' own prediction leaves out what packing pads and the rotary tables.
    assert 0.95 * predicted.weights < measured.weights < predicted.weights + 0.1 * predicted.weights


def test_nothing_of_it_is_left_in_the_cache(tmp_path: Path) -> None:
    runner, _, _ = load_runner(
        inspect(write_tiny_llama(tmp_path)),
        ModelOptions("tiny", ("tiny",)),
        CacheConfig(memory_bytes=MIB),
        SchedulerConfig(),
        lambda done, total: None,
    )
    pool = runner._attention._pool  # type: ignore[attr-defined]
    assert not pool.data.any()


def test_on_cpu_only_the_first_layers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep model on CPU starts as fast as a shallow one; its head is run in any case."""
    seen: list[int] = []
    attention = TorchAttention
    monkeypatch.setenv("PAGEMILL_NATIVE", "0")

    class Noting(attention):  # type: ignore[valid-type,misc]
        def begin(self, metadata: object) -> object:
            attend = super().begin(metadata)

            def noted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> object:
                seen.append(layer)
                return attend(query, key, value, layer)

            return noted

    monkeypatch.setattr(part, "TorchAttention", Noting)
    memory_of(inspect(write_tiny_llama(tmp_path, num_hidden_layers=5)))
    assert set(seen) == set(range(profile.CPU_LAYERS))


@needs_native
def test_so_do_a_native_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch: list[KVPool] = []

    class Noting(NativeAttention):
        def __init__(self, cache: KVPool, layers: Sequence[LayerAttention], threads: Pool) -> None:
            scratch.append(cache)
            super().__init__(cache, layers, threads)

    monkeypatch.setattr(part, "NativeAttention", Noting)
    memory_of(inspect(write_tiny_llama(tmp_path, num_hidden_layers=5)))
    first, own = scratch
    assert [bool(layer.any()) for layer in first.data] == [True] * profile.CPU_LAYERS + [False] * 3
    assert not own.data.any()


def test_a_step_that_takes_more_than_predicted_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On CPU the cache is what was given, so it is told and no more."""
    monkeypatch.setattr(load_module, "profile", lambda *args: 900 * MIB)
    with caplog.at_level(logging.WARNING):
        memory = memory_of(inspect(write_tiny_llama(tmp_path)))
    assert "a step took 900.0 MiB, more than" in caplog.text
    assert memory.measured.activation == 900 * MIB
    assert memory.fit.kv_cache_bytes == 512 * MIB
