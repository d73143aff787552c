"""Each argument of `LLM` is checked before a weight is read: what can't be is one error that names it and what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server import LLM
from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dtype": "float12"}, "dtype must be one of auto, float32, bfloat16, float16, not 'float12'"),
        ({"device": "abacus"}, "device must be one of"),
        ({"task": "dance"}, "task must be one of generate, embed"),
        ({"max_model_len": 0}, "max_model_len must be a whole number from 1"),
        ({"max_num_seqs": -1}, "max_num_seqs must be a whole number from 1"),
        ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens must be a whole number"),
        ({"scheduling_policy": "nonsense"}, 'no scheduling policy "nonsense"'),
        ({"scheduling_policy": 7}, "scheduling_policy must be a name"),
        ({"block_size": 0}, "block_size must be a whole number from 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be above 0 and at most 1"),
        ({"kv_cache_memory_bytes": "2 apples"}, "kv_cache_memory_bytes must be a size"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes must be a size"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching must be True or False"),
        ({"kv_offloading_size": -1}, "kv_offloading_size must be GiB from 0"),
        ({"kv_offloading_size": float("nan")}, "kv_offloading_size must be GiB from 0"),
        ({"kv_offloading_size": float("inf")}, "kv_offloading_size must be GiB from 0"),
        ({"kv_offloading_size": "1GiB"}, "kv_offloading_size must be a number"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be a whole number from 1"),
        ({"seed": True}, "seed must be a whole number from 0"),
        ({"model": 7}, "model must be org/name or a path"),
    ],
)
def test_arguments_that_cannot_be(folder: Path, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(PagemillError, match=named) as caught:
        LLM(**({"model": str(folder)} | arguments))
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION
