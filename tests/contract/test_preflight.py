"""The preflight judges as the server will: its flags are the server's, and so are the sizes that nobody says."""

from __future__ import annotations

import pytest

from pagemill import fit_request
from pagemill.preflight_command import asked, parser
from pagemill_server import cli
from pagemill_server.model import division


def test_a_server_on_cpu_takes_the_cache_that_the_preflight_reckons_with() -> None:
    assert (division.MOST_CACHE, division.CACHE_SHARE) == (fit_request.CPU_KV_CACHE, fit_request.CPU_CACHE_SHARE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_same_flags_say_the_same(device: str) -> None:
    flags = [
        *("org/name", "--device", device, "--dtype", "bfloat16", "--gpu-memory-utilization", "0.8"),
        *("--block-size", "32", "--max-model-len", "100", "--max-num-seqs", "3", "--max-num-batched-tokens", "99"),
        *("--tensor-parallel-size", "2", "--kv-cache-memory-bytes", "80MiB", "--kv-offloading-size", "0.5"),
    ]
    ask, server = asked(parser().parse_known_args(flags)[0]), cli.parse(flags)
    assert (ask.on_cpu, ask.dtype) == (server.model.device == "cpu", server.model.dtype)
    assert (ask.max_model_len, ask.gpus) == (server.model.max_model_len, server.model.tensor_parallel_size)
    assert (ask.block_size, ask.kv_cache) == (server.cache.block_size, server.cache.memory_bytes)
    assert (ask.host_cache, ask.utilization) == (server.cache.offloading_bytes, server.cache.gpu_memory_utilization)
    limits = server.scheduler
    assert (ask.max_num_seqs, ask.max_num_batched_tokens) == (limits.max_num_seqs, limits.max_num_batched_tokens)
