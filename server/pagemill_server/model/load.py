"""From a described checkpoint to a model that runs: place, fit, load, allocate. The server's start calls this in a thread.

Refuses before a weight is read what can't fit; says in bytes how far it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, MemoryFit, fit
from pagemill.model_config import ModelConfig
from pagemill.model_files import ModelFiles
from pagemill.sizes import format_size
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.memory import MemoryUse, StartMemory
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.block_copies import make_copier
from pagemill_server.model.checkpoint import Checkpoint, Progress
from pagemill_server.model.device import Placement, place
from pagemill_server.model.division import divide
from pagemill_server.model.families import make_model
from pagemill_server.model.host_pool import HostPool, host_blocks
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.memory_meter import make_meter
from pagemill_server.model.profile import Widest, profile
from pagemill_server.model.runner import Runner

log = logging.getLogger(__name__)


def load_runner(
    files: ModelFiles,
    options: ModelOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    progress: Progress,
    warming: Callable[[], None] = lambda: None,
    embedding: EmbeddingConfig = LAST_TOKEN,
) -> tuple[Runner, EngineLimits, StartMemory]:
    """Load the model; raises PagemillError with what to change when it can't be served here.

    `warming` is told when the weights are in and the first step is about to run. `embedding` is how vectors are made where they
    are asked for.
    """
    placement, config = place(options), files.config
    _check(options, cache)
    request = divide(config, options, cache, scheduler, placement)
    memory = fit(request)
    torch.set_num_threads(placement.threads)
    began = time.monotonic()
    meter = make_meter(placement.device)
    before = meter.held()
    checkpoint = Checkpoint(files, placement.dtype, placement.device, progress)
    model = make_model(checkpoint, config, memory.max_model_len)
    weights = _difference(meter.held(), before)
    log.info(
        "loaded %s in %.1f s: %s on %s, %d threads",
        files.path,
        time.monotonic() - began,
        placement.dtype_name,
        placement.device,
        placement.threads,
    )
    warming()
    began = time.monotonic()
    bounds = Widest(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, memory.max_model_len, cache.block_size)
    scratch = TorchAttention(_pool(config, 1, cache.block_size, placement), model.attention)
    activation = profile(model, config.hidden_size, scratch, bounds, placement, meter)
    memory = _corrected(request, memory, activation, placement)
    pool = _pool(config, memory.num_blocks, cache.block_size, placement)
    start = StartMemory(memory, MemoryUse(weights, activation, _usable_bytes(pool)))
    log.info(
        "KV cache %s = %d blocks of %d tokens; longest sequence %d tokens; first step %.2f s",
        format_size(memory.kv_cache_bytes),
        memory.num_blocks,
        cache.block_size,
        memory.max_model_len,
        time.monotonic() - began,
    )
    log.info("memory: %s", start)
    host = host_blocks(config, cache.block_size, placement.dtype.itemsize, cache.offloading_bytes)
    copier = make_copier(pool, HostPool(pool, host)) if host else None
    limits = EngineLimits(memory.max_model_len, config.vocab_size, memory.num_blocks, cache.block_size, host)
    return (
        Runner(model, TorchAttention(pool, model.attention), cache.block_size, placement.device, copier, embedding),
        limits,
        start,
    )


def _corrected(request: FitRequest, memory: MemoryFit, activation: int | None, placement: Placement) -> MemoryFit:
    """What the first step was measured to take goes before its estimate: on a GPU the cache is what is left. Raises
    PagemillError where that holds no sequence any more."""
    if activation is None or activation <= memory.activation_bytes:
        return memory
    log.warning(
        "a step took %s, more than the %s that were reckoned with",
        format_size(activation),
        format_size(memory.activation_bytes),
    )
    if placement.device.type == "cpu":
        return memory
    smaller = fit(replace(request, max_model_len=memory.max_model_len, measured_activation=activation))
    if smaller.failure is not None:
        raise PagemillError(smaller.failure.reason, smaller.failure.message, smaller.failure.suggestion)
    return smaller


def _pool(config: ModelConfig, num_blocks: int, block_size: int, placement: Placement) -> KVPool:
    return KVPool(
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.head_dim,
        num_blocks,
        block_size,
        placement.dtype,
        placement.device,
    )


def _usable_bytes(pool: KVPool) -> int:
    """Of the blocks that can be given to sequences."""
    return pool.data[:, :, :, : pool.num_blocks].nbytes


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _check(options: ModelOptions, cache: CacheConfig) -> None:
    if cache.block_size < 1:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"block size {cache.block_size} is not a number of tokens from 1 up"
        )
    if options.tensor_parallel_size != 1:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, "tensor parallel is not supported by this version: leave it out"
        )
    if options.max_model_len is not None and options.max_model_len < 1:
        raise PagemillError(FailureReason.INVALID_CONFIGURATION, "the maximum model length must be at least one token")
