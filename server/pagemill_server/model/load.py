"""From a described checkpoint to a model that runs: place, fit, load, allocate. The server's start calls this in a thread.

Refuses before a weight is read what can't fit; says in bytes how far it is.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, MemoryFit, fit, weights_bytes
from pagemill.model_config import ModelConfig
from pagemill.model_files import ModelFiles
from pagemill.sizes import format_size
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.model import host_limits
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.attention_plan import LONGEST_TILE
from pagemill_server.model.checkpoint import Checkpoint, Progress
from pagemill_server.model.device import Placement, place
from pagemill_server.model.families import make_model
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.linear import can_pack
from pagemill_server.model.runner import Runner

MOST_CACHE = 4 << 30  # bytes: what a CPU server takes at most without being told
CACHE_SHARE = 0.4  # of the memory that is free once the weights are in

log = logging.getLogger(__name__)


def load_runner(
    files: ModelFiles, options: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig, progress: Progress
) -> tuple[Runner, EngineLimits, MemoryFit]:
    """Load the model; raises PagemillError with what to change when it can't be served here."""
    placement = place(options)
    _check(options, cache, files.config)
    memory = fit_memory(files.config, options, cache, scheduler, placement)
    if memory.failure is not None:
        raise PagemillError(memory.failure.reason, memory.failure.message, memory.failure.suggestion)
    torch.set_num_threads(placement.threads)
    began = time.monotonic()
    checkpoint = Checkpoint(files, placement.dtype, placement.device, progress)
    model = make_model(checkpoint, files.config, memory.max_model_len)
    config = files.config
    pool = KVPool(
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.head_dim,
        memory.num_blocks,
        cache.block_size,
        placement.dtype,
        placement.device,
    )
    log.info(
        "loaded %s in %.1f s: %s on %s, %d threads; KV cache %s = %d blocks of %d tokens; longest sequence %d tokens",
        files.path,
        time.monotonic() - began,
        placement.dtype_name,
        placement.device,
        placement.threads,
        format_size(memory.kv_cache_bytes),
        memory.num_blocks,
        cache.block_size,
        memory.max_model_len,
    )
    limits = EngineLimits(memory.max_model_len, config.vocab_size, memory.num_blocks, cache.block_size)
    return Runner(model, TorchAttention(pool), cache.block_size, placement.device), limits, memory


def fit_memory(
    config: ModelConfig, options: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig, placement: Placement
) -> MemoryFit:
    """Divide this machine's memory."""
    size = placement.dtype.itemsize
    free = host_limits.available_memory()
    request = FitRequest(
        config=config,
        dtype_bytes=size,
        memory_bytes=free,
        block_size=cache.block_size,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        packs_weights=placement.dtype == torch.float32 and can_pack(),
    )
    given = cache.memory_bytes
    if given is None:
        given = min(MOST_CACHE, int(CACHE_SHARE * max(0, free - weights_bytes(request))))
        # More than all sequences at their longest could never be used.
        longest = options.max_model_len or config.longest_sequence
        blocks = scheduler.max_num_seqs * -(-longest // cache.block_size)
        given = min(given, blocks * cache.block_size * config.kv_bytes_per_token(size))
    return fit(replace(request, kv_cache_bytes=given))


def _check(options: ModelOptions, cache: CacheConfig, config: ModelConfig) -> None:
    size = cache.block_size
    if not 1 <= size <= LONGEST_TILE or size & (size - 1):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"block size {size} is not a power of two from 1 to {LONGEST_TILE}"
        )
    if options.tensor_parallel_size != 1:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, "tensor parallel is not supported by this version: leave it out"
        )
    if options.max_model_len is not None and options.max_model_len < 1:
        raise PagemillError(FailureReason.INVALID_CONFIGURATION, "the maximum model length must be at least one token")
    window = config.sliding_window
    if window is not None and (options.max_model_len or 0) > window:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"maxModelLen {options.max_model_len} is more than the model's sliding window of {window} tokens, beyond "
            f"which this version can't compute: set at most {window}",
            {"maxModelLen": window},
        )
