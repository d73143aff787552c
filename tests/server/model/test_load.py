"""The start: what is picked, what fits, and what is refused before a weight is read."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill import config_reading
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, MemoryFit, fit
from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.model import division, host_limits, load
from pagemill_server.model.device import Placement
from pagemill_server.model.load import corrected, load_runner
from tests.server.computing import needs_native
from tests.server.tiny import tiny_config, write_tiny_llama

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head_dim, float32


def start(
    folder: Path, cache: CacheConfig | None = None, scheduler: SchedulerConfig | None = None, **options: Any
) -> tuple[EngineLimits, MemoryFit]:
    told: list[int] = []
    settings = ModelOptions(model=str(folder), served_names=("tiny",), **{"dtype": "float32", **options})
    try:
        _, limits, memory = load_runner(
            inspect(folder),
            settings,
            cache or CacheConfig(),
            scheduler or SchedulerConfig(),
            lambda done, _: told.append(done),
        )
    except PagemillError:
        assert not told, "weights were read before the refusal"
        raise
    return limits, memory.fit


def refusal(folder: Path, cache: CacheConfig | None = None, **options: Any) -> PagemillError:
    with pytest.raises(PagemillError) as caught:
        start(folder, cache, **options)
    return caught.value


def test_a_given_cache_is_taken_as_it_is_and_limits_follow(tmp_path: Path) -> None:
    limits, memory = start(
        write_tiny_llama(tmp_path), CacheConfig(block_size=16, memory_bytes=40 * 16 * TOKEN_BYTES + 5)
    )
    assert limits == EngineLimits(max_model_len=256, vocab_size=264, num_blocks=40, block_size=16)
    assert memory.kv_bytes_per_token == TOKEN_BYTES
    assert memory.kv_cache_bytes == 40 * 16 * TOKEN_BYTES


def test_a_derived_cache_holds_every_sequence_at_its_longest_and_no_more(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    limits, _ = start(folder, scheduler=SchedulerConfig(max_num_seqs=3))
    assert limits.num_blocks == 3 * 256 // 16
    limits, _ = start(folder, scheduler=SchedulerConfig(max_num_seqs=3), max_model_len=100)
    assert limits.num_blocks == 3 * 7
    assert limits.max_model_len == 100


def test_a_derived_cache_is_a_share_of_what_is_free_and_never_more_than_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path, max_position_embeddings=1 << 20)
    monkeypatch.setattr(host_limits, "available_memory", lambda: 80_000_000)
    limits, memory = start(folder, max_model_len=4096)
    assert memory.kv_cache_bytes == pytest.approx(0.4 * (80_000_000 - memory.weights_bytes), abs=16 * TOKEN_BYTES)
    monkeypatch.setattr(division, "MOST_CACHE", 1_000_000)
    limits, memory = start(folder, max_model_len=512)
    assert limits.num_blocks == 1_000_000 // (16 * TOKEN_BYTES)


def test_without_a_length_the_longest_that_the_cache_holds_is_taken(tmp_path: Path) -> None:
    limits, _ = start(write_tiny_llama(tmp_path), CacheConfig(block_size=16, memory_bytes=5 * 16 * TOKEN_BYTES))
    assert limits.max_model_len == 80


def test_a_cache_that_cant_hold_one_sequence_is_refused_with_a_length_that_fits(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    cache = CacheConfig(block_size=16, memory_bytes=8 * 16 * TOKEN_BYTES)
    failure = refusal(folder, cache, max_model_len=200).failure
    assert failure.reason == FailureReason.KV_CACHE_TOO_SMALL
    assert failure.suggestion["maxModelLen"] == 128
    limits, _ = start(folder, cache, max_model_len=128)
    assert limits.max_model_len == 128


def test_a_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    failure = refusal(write_tiny_llama(tmp_path), max_model_len=257).failure
    assert failure.reason == FailureReason.INVALID_CONFIGURATION
    assert failure.suggestion == {"maxModelLen": 256}


def test_a_sliding_window_does_not_bound_the_length(tmp_path: Path) -> None:
    limits, _ = start(write_tiny_llama(tmp_path, sliding_window=128, architectures=["MistralForCausalLM"]))
    assert limits.max_model_len == 256


@pytest.mark.parametrize("block_size", [0, -16])
def test_a_block_of_no_tokens_is_refused(tmp_path: Path, block_size: int) -> None:
    assert "from 1 up" in str(refusal(write_tiny_llama(tmp_path), CacheConfig(block_size=block_size)))


@pytest.mark.parametrize("block_size", [1, 7, 24, 512])
def test_any_other_block_size_is_taken(tmp_path: Path, block_size: int) -> None:
    limits, memory = start(write_tiny_llama(tmp_path), CacheConfig(block_size, 600 * TOKEN_BYTES))
    assert limits.num_blocks == memory.num_blocks == 600 // block_size
    assert limits.max_model_len == min(256, limits.num_blocks * block_size)


@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_what_a_refusal_names_fits(tmp_path: Path, block_size: int) -> None:
    folder = write_tiny_llama(tmp_path)
    cache = CacheConfig(block_size, 100 * TOKEN_BYTES, offloading_bytes=1 << 20)
    nearest = refusal(folder, cache, max_model_len=256).failure.suggestion["maxModelLen"]
    assert isinstance(nearest, int)
    assert start(folder, cache, max_model_len=nearest)[0].max_model_len == nearest


def test_a_second_tier_is_counted_in_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CacheConfig(16, 40 * 16 * TOKEN_BYTES, offloading_bytes=5 * 16 * TOKEN_BYTES + 1)
    with caplog.at_level(logging.INFO):
        assert start(write_tiny_llama(tmp_path), cache)[0].num_host_blocks == 5
    assert "second tier 40.0 KiB = 5 blocks" in caplog.text


def test_a_second_tier_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    error = refusal(write_tiny_llama(tmp_path), CacheConfig(16, 1 << 20, offloading_bytes=100))
    assert error.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert "takes 8.0 KiB, but the second tier was given 100 B" in str(error)


def test_what_the_machine_does_not_have_is_refused_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path)
    monkeypatch.setattr(host_limits, "available_memory", lambda: 100 << 20)
    start(folder, CacheConfig(16, 8 << 20, offloading_bytes=8 << 20))
    for cache in (CacheConfig(16, 8 << 20, offloading_bytes=90 << 20), CacheConfig(16, 90 << 20)):
        error = refusal(folder, cache)
        assert error.failure.reason is FailureReason.OUT_OF_MEMORY
        assert "100.0 MiB of this machine's memory is free" in str(error)
        assert "90.0 MiB" in str(error)
        assert ("--kv-offloading-size" in str(error)) == (cache.offloading_bytes > 0)


def test_a_refusal_for_want_of_memory_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_llama(tmp_path)
    monkeypatch.setattr(host_limits, "available_memory", lambda: 100 << 20)
    tier = str(refusal(folder, CacheConfig(16, 8 << 20, offloading_bytes=120 << 20)))
    assert "lower --kv-offloading-size, or use" in tier
    step = str(refusal(folder, CacheConfig(16, 8 << 20), scheduler=SchedulerConfig(max_num_batched_tokens=10**6)))
    assert "lower --max-num-batched-tokens or --max-num-seqs, or use" in step
    both = str(refusal(folder, CacheConfig(16, 80 << 20, offloading_bytes=80 << 20)))
    assert "lower --kv-offloading-size, lower --kv-cache-memory-bytes, lower --max-num-batched-tokens" in both


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, "float32, bfloat16, float16"),
        ({"device": "cuda"}, "--device cpu"),
        ({"max_model_len": 0}, "at least one token"),
    ],
)
def test_options_that_cant_be_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    error = refusal(write_tiny_llama(tmp_path), **options)
    assert error.failure.reason == FailureReason.INVALID_CONFIGURATION
    assert words in str(error)


def test_the_predicted_weights_are_what_is_in_memory(tmp_path: Path) -> None:
    """An untied model: parameters x 4 bytes (what oneDNN's packing adds is padding)."""
    _, memory = start(write_tiny_llama(tmp_path, tie_word_embeddings=False))
    stored = sum(info.nbytes for info in inspect(tmp_path).tensors.values())
    assert memory.weights_bytes == stored


LOADING = """
import sys
from pathlib import Path
from pagemill.model_files import inspect
from pagemill_server.config import ModelOptions
from pagemill_server.model.device import place
from pagemill_server.model.memory_meter import HostMeter
from pagemill_server.model.part import Part, Setup

kept = []

def load(folder):
    files = inspect(Path(folder))
    options = ModelOptions(folder, ("tiny",), dtype="float32")
    kept.append(Part(Setup(files, place(options, files), 16, 64)))

load(sys.argv[1])  # what a first load reads of libraries is not the weights'
print(HostMeter().peak(lambda: load(sys.argv[2])))
"""


@needs_native
def test_weights_are_read_and_packed_one_by_one(tmp_path: Path) -> None:
    """Never are all there twice: what is more than stored is a layer as it was read, and holes between packed ones. In a process
    of its own, for what others have left in the heap, and read of libraries' files, counts too."""
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 24}
    small, large = write_tiny_llama(tmp_path / "small"), write_tiny_llama(tmp_path / "large", **shape)
    command = [sys.executable, "-c", LOADING, str(small), str(large)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if told == "None":
        pytest.skip("this kernel does not let a process reset its peak")
    stored = sum(info.nbytes for info in inspect(large).tensors.values())
    assert stored < int(told) < 1.9 * stored


@needs_native
def test_what_only_the_start_needed_is_given_back_after_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("profile", "give_back_unused", "let_go_of_files"):
        real = getattr(load, name)
        monkeypatch.setattr(load, name, lambda *args, name=name, real=real: (done.append(name), real(*args))[1])
    start(write_tiny_llama(tmp_path))
    assert done == ["profile", "give_back_unused", "let_go_of_files"]


def test_half_precision_halves_the_cache(tmp_path: Path) -> None:
    _, memory = start(write_tiny_llama(tmp_path), dtype="bfloat16")
    assert memory.kv_bytes_per_token == TOKEN_BYTES // 2


def test_the_asked_number_of_threads_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    folder = write_tiny_llama(tmp_path)
    for count in (2, 1):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        start(folder)
        assert torch.get_num_threads() == count
    torch.set_num_threads(before)


def on_a_gpu(max_model_len: int) -> tuple[FitRequest, MemoryFit, Placement]:
    """64 MiB of which the tiny model, a step and 256 tokens' cache take a part."""
    config = config_reading.from_hugging_face(tiny_config(), {}, Path("tiny"))
    request = FitRequest(config, 2, 64 << 20, 0.9, 16, max_model_len, max_num_batched_tokens=64, max_num_seqs=4)
    return request, fit(request), Placement(torch.device("cuda"), torch.bfloat16, 1)


def test_on_a_gpu_a_step_that_takes_more_than_predicted_costs_blocks(caplog: pytest.LogCaptureFixture) -> None:
    request, memory, placement = on_a_gpu(256)
    more = memory.activation_bytes + (4 << 20)
    with caplog.at_level(logging.WARNING):
        smaller = corrected(request, memory, more, placement)
    block = 16 * memory.kv_bytes_per_token
    assert (memory.num_blocks - smaller.num_blocks) * block == pytest.approx((4 << 20) + block, abs=block)
    assert smaller.max_model_len == 256
    assert "more than the" in caplog.text
    assert corrected(request, memory, memory.activation_bytes, placement) is memory
    assert corrected(request, memory, None, placement) is memory


def test_on_a_gpu_a_step_that_leaves_no_sequence_is_refused() -> None:
    request, memory, placement = on_a_gpu(256)
    with pytest.raises(PagemillError) as error:
        corrected(request, memory, memory.activation_bytes + memory.kv_cache_bytes - 1000, placement)
    assert error.value.failure.reason is FailureReason.KV_CACHE_TOO_SMALL
