"""What fits is computed once for everybody: tables by hand, and what is suggested does fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.config_reading import from_hugging_face
from pagemill.failures import FailureReason
from pagemill.memory_fit import FitRequest, MemoryFit, activation_bytes, fit
from pagemill.model_config import ModelConfig
from tests.pagemill.sample_models import config_json

GIB = 1024**3


def model(**overrides: Any) -> ModelConfig:
    return from_hugging_face(config_json(**overrides), {}, Path("x"))


LLAMA_7B = model(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
)
SMOLLM2 = model(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
)


def test_llama_2_7b_as_its_authors_count_it() -> None:
    result = fit(FitRequest(LLAMA_7B, dtype_bytes=2, memory_bytes=24 * GIB))
    assert LLAMA_7B.num_parameters() == 6_738_415_616  # its model card
    assert result.weights_bytes == 2 * 6_738_415_616
    assert result.kv_bytes_per_token == 2 * 32 * 4096 * 2 == 512 * 1024  # 0.5 MiB: 4096 tokens take 2 GiB
    assert result.failure is None
    assert result.max_model_len == result.max_model_len_that_fits == 4096
    spent = result.weights_bytes + result.activation_bytes + result.kv_cache_bytes
    assert spent <= int(24 * GIB * 0.9) < spent + 16 * result.kv_bytes_per_token  # no block is left over


def test_smollm2_on_a_cpu_takes_the_cache_it_is_given() -> None:
    result = fit(FitRequest(SMOLLM2, dtype_bytes=4, memory_bytes=0, kv_cache_bytes=1 * GIB, block_size=32))
    assert SMOLLM2.num_parameters() == 134_515_008
    assert result.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4 == 46_080
    assert result.num_blocks == GIB // (32 * 46_080) == 728
    assert (result.max_concurrent_tokens, result.kv_cache_bytes) == (728 * 32, 728 * 32 * 46_080)
    assert (result.max_model_len, result.failure) == (8192, None)


@pytest.mark.parametrize(
    ("request_", "reason", "keys", "says"),
    [
        pytest.param(
            FitRequest(LLAMA_7B, 2, 16 * GIB, max_model_len=4096),
            FailureReason.KV_CACHE_TOO_SMALL,
            {"maxModelLen", "gpuMemoryUtilization", "gpu.memoryGiB"},
            "one sequence of 4096 tokens needs 2.0 GiB",
            id="a little too small",
        ),
        pytest.param(
            FitRequest(LLAMA_7B, 2, 8 * GIB),
            FailureReason.KV_CACHE_TOO_SMALL,
            {"gpu.memoryGiB"},
            "a single block",
            id="not even the weights",
        ),
        pytest.param(
            FitRequest(LLAMA_7B, 2, 8 * GIB, max_model_len=99999),
            FailureReason.KV_CACHE_TOO_SMALL,
            {"gpu.memoryGiB"},
            "one sequence of 4096 tokens",
            id="neither the weights nor the length",
        ),
        pytest.param(
            FitRequest(LLAMA_7B, 2, 80 * GIB, max_model_len=8192),
            FailureReason.INVALID_CONFIGURATION,
            {"maxModelLen"},
            "the 4096 tokens that the model was made for: set at most 4096",
            id="longer than the model",
        ),
        pytest.param(
            FitRequest(SMOLLM2, 4, 0, kv_cache_bytes=64 * 1024**2, max_model_len=8192),
            FailureReason.KV_CACHE_TOO_SMALL,
            {"maxModelLen", "engine.kvCacheGiB"},
            "the KV cache has 64.0 MiB: set maxModelLen to 1408 or give the cache 0.36 GiB",
            id="a cache too small on CPU",
        ),
        pytest.param(
            FitRequest(SMOLLM2, 4, 0, kv_cache_bytes=10_000),
            FailureReason.KV_CACHE_TOO_SMALL,
            {"engine.kvCacheGiB"},
            "a single block",
            id="no block on CPU",
        ),
    ],
)
def test_what_does_not_fit_says_what_would(
    request_: FitRequest, reason: FailureReason, keys: set[str], says: str
) -> None:
    failure = fit(request_).failure
    assert failure is not None
    assert failure.reason is reason
    assert set(failure.suggestion) == keys
    assert says in failure.message
    for value in failure.suggestion.values():
        assert str(value) in failure.message


def apply(request: FitRequest, field: str, value: Any) -> FitRequest:
    match field:
        case "maxModelLen":
            return replace(request, max_model_len=value)
        case "gpuMemoryUtilization":
            assert value <= 1
            return replace(request, utilization=value)
        case "gpu.memoryGiB":
            return replace(request, memory_bytes=int(value * GIB))
        case "engine.kvCacheGiB":
            return replace(request, kv_cache_bytes=int(value * GIB))
    raise AssertionError(f"nobody can set {field}")


CONFIGS = st.builds(
    model,
    vocab_size=st.integers(1, 200_000),
    hidden_size=st.integers(1, 128).map(lambda n: 64 * n),
    intermediate_size=st.integers(1, 30_000),
    num_hidden_layers=st.integers(1, 100),
    num_attention_heads=st.just(8),
    num_key_value_heads=st.sampled_from([1, 2, 4, 8]),
    max_position_embeddings=st.integers(1, 200_000),
    tie_word_embeddings=st.booleans(),
)
REQUESTS = st.builds(
    FitRequest,
    config=CONFIGS,
    dtype_bytes=st.sampled_from([2, 4]),
    memory_bytes=st.integers(0, 200 * GIB),
    utilization=st.floats(0.01, 1.0),
    block_size=st.integers(1, 256),
    max_model_len=st.none() | st.integers(1, 300_000),
    max_num_batched_tokens=st.integers(1, 8192),
    max_num_seqs=st.integers(1, 512),
    kv_cache_bytes=st.none() | st.integers(0, 50 * GIB),
)


@given(REQUESTS)
def test_every_suggestion_fits_when_it_is_applied(request: FitRequest) -> None:
    failure = fit(request).failure
    if failure is None:
        return
    assert failure.suggestion, "a refusal without a way out"
    length = request.max_model_len
    if failure.reason is FailureReason.KV_CACHE_TOO_SMALL and length is not None:
        length = min(length, request.config.max_position_embeddings)
    for field, value in failure.suggestion.items():
        result = fit(apply(replace(request, max_model_len=length), field, value))
        assert result.failure is None, (field, value, result.failure)


@pytest.mark.parametrize("utilization", [1e-12, 1e-300, 5e-324])
@pytest.mark.parametrize("memory", [0, 24 * GIB])
def test_a_share_of_next_to_nothing_is_refused_at_once(utilization: float, memory: int) -> None:
    failure = fit(FitRequest(LLAMA_7B, 2, memory, utilization)).failure
    assert failure is not None
    assert "gpu.memoryGiB" not in failure.suggestion  # there is no such GPU
    assert "gpuMemoryUtilization" in failure.message


@given(REQUESTS)
def test_the_longest_that_fits_fits_and_a_block_more_does_not(request: FitRequest) -> None:
    longest = fit(request).max_model_len_that_fits
    if longest:
        assert fit(replace(request, max_model_len=longest)).failure is None
    assert fit(replace(request, max_model_len=longest + request.block_size)).failure is not None


@given(REQUESTS)
def test_the_sums_are_right_whatever_is_asked(request: FitRequest) -> None:
    result = fit(request)
    budget = int(request.memory_bytes * request.utilization)
    fixed = result.weights_bytes + result.activation_bytes
    if request.kv_cache_bytes is not None:
        assert result.kv_cache_bytes <= request.kv_cache_bytes
    elif result.num_blocks:
        assert fixed + result.kv_cache_bytes <= budget
    assert result.num_blocks * request.block_size == result.max_concurrent_tokens
    assert result.kv_cache_bytes == result.max_concurrent_tokens * result.kv_bytes_per_token
    if request.max_model_len is None and result.failure is None:
        assert result.max_model_len == result.max_model_len_that_fits > 0
    assert_more_memory_never_holds_less(request, result)


def assert_more_memory_never_holds_less(request: FitRequest, result: MemoryFit) -> None:
    more = fit(replace(request, memory_bytes=request.memory_bytes + GIB))
    assert more.num_blocks >= result.num_blocks


def test_the_reserve_grows_with_the_step() -> None:
    request = FitRequest(LLAMA_7B, 2, 24 * GIB)
    more_tokens = replace(request, max_num_batched_tokens=4096)
    more_sequences = replace(request, max_num_seqs=512)
    assert activation_bytes(request) < activation_bytes(more_tokens)
    assert activation_bytes(more_sequences) - activation_bytes(request) == 256 * 3 * 32000 * 4


def test_a_sliding_window_does_not_bound_a_sequence() -> None:
    config = replace(LLAMA_7B, sliding_window=1024)
    assert fit(FitRequest(config, dtype_bytes=2, memory_bytes=24 * GIB)).max_model_len == 4096
