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
from pagemill.model_files import ModelFiles
from pagemill.sizes import format_size
from pagemill_kernels.native.library import let_go_of_files
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.memory import MemoryUse, StartMemory
from pagemill_server.model.block_copies import BlockCopier
from pagemill_server.model.checkpoint import Progress
from pagemill_server.model.device import Placement, place
from pagemill_server.model.division import divide
from pagemill_server.model.families import Model
from pagemill_server.model.grammar_masks import GrammarMasks
from pagemill_server.model.host_pool import host_blocks
from pagemill_server.model.interface import AttentionBackend
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.memory_meter import give_back_unused, make_meter
from pagemill_server.model.messages import Begin, Meet, Warm
from pagemill_server.model.part import Cache, Part, Setup
from pagemill_server.model.profile import Widest, profile
from pagemill_server.model.runner import Runner
from pagemill_server.model.workers import ParallelRunner, Workers
from pagemill_server.text.grammar import GrammarCompiler

log = logging.getLogger(__name__)

# What a Runner is made of, in its order.
_RunnerParts = tuple[
    Model, AttentionBackend, int, torch.device, BlockCopier | None, EmbeddingConfig, GrammarMasks | None
]


def load_runner(
    files: ModelFiles,
    options: ModelOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    progress: Progress,
    warming: Callable[[], None] = lambda: None,
    embedding: EmbeddingConfig = LAST_TOKEN,
    grammars: GrammarCompiler | None = None,
) -> tuple[Runner, EngineLimits, StartMemory]:
    """Load the model; raises PagemillError with what to change when it can't be served here.

    `warming` is told when the weights are in and the first step is about to run. `embedding` is how vectors are made where they
    are asked for, `grammars` what compiles those of sequences that have one.
    """
    placement, config = place(options, files), files.config
    _check(options, cache)
    request = divide(config, options, cache, scheduler, placement)
    setup = Setup(files, placement, cache.block_size, fit(request).max_model_len, size=options.tensor_parallel_size)
    workers = Workers(setup)
    try:
        part, weights = _load_part(workers, progress)
        warming()
        memory, activation = _first_step(workers, part, request, cache, scheduler)
        host = host_blocks(config, cache.block_size, placement.dtype.itemsize, cache.offloading_bytes)
        if host:
            log.info("second tier %s = %d blocks of host memory", format_size(cache.offloading_bytes), host)
        workers.send(Begin(memory.num_blocks, host))
        held = part.cache(memory.num_blocks, host)
    except BaseException:
        workers.close()
        raise
    _settle(placement)
    start = StartMemory(memory, MemoryUse(weights, activation, _usable_bytes(held.pool)))
    log.info("memory: %s", start)
    limits = EngineLimits(memory.max_model_len, config.vocab_size, memory.num_blocks, cache.block_size, host)
    masks = GrammarMasks(grammars, config.vocab_size) if grammars is not None else None
    parts = part.model, held.attention, cache.block_size, placement.device, held.copier, embedding, masks
    if placement.device.type == "cuda":
        # What a step of experts, or of a family that isn't ours, does follows from what it computes: no graph replays it.
        captures = config.native and config.experts is None and not options.enforce_eager
        bounds = _widest(memory.max_model_len, cache, scheduler)
        return _gpu_runner(parts, held, bounds, captures=captures), limits, start
    runner = Runner(*parts) if setup.size == 1 else ParallelRunner(workers, *parts)
    return runner, limits, start


def _gpu_runner(parts: _RunnerParts, held: Cache, bounds: Widest, *, captures: bool) -> Runner:
    """Compiled, and captured where it can be."""
    # Here and not above: Triton need not be there where no GPU is.
    from pagemill_server.model.graph_runner import GraphRunner

    runner = GraphRunner(*parts)
    runner.warm_up(held.pool, bounds, captures=captures)
    return runner


def _widest(max_model_len: int, cache: CacheConfig, scheduler: SchedulerConfig) -> Widest:
    return Widest(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, max_model_len, cache.block_size)


def _load_part(workers: Workers, progress: Progress) -> tuple[Part, int | None]:
    """This process's part while the workers load theirs, and what it takes in bytes."""
    setup, placement = workers.setup, workers.setup.placement
    began = time.monotonic()
    meter = make_meter(placement.device)
    before = meter.held()
    part = Part(setup, progress)
    weights = _difference(meter.held(), before)
    workers.wait_until_loaded()
    workers.send(Meet())
    try:
        part.meet()
    except RuntimeError as error:
        raise PagemillError(FailureReason.ENGINE_FAILED, str(workers.lost(error))) from error
    log.info(
        "loaded %s in %.1f s: %s; %s, %d x %d threads",
        setup.files.path,
        time.monotonic() - began,
        placement,
        placement.device,
        setup.size,
        placement.threads,
    )
    return part, weights


def _first_step(
    workers: Workers, part: Part, request: FitRequest, cache: CacheConfig, scheduler: SchedulerConfig
) -> tuple[MemoryFit, int | None]:
    """The widest step: how the memory is divided after it, and what it was measured to take."""
    setup, placement = workers.setup, workers.setup.placement
    began = time.monotonic()
    activation = profile(
        part.model,
        request.config.hidden_size,
        part.cache(1).attention,
        _widest(setup.max_model_len, cache, scheduler),
        placement,
        make_meter(placement.device),
        lambda step: workers.send(Warm(step)),
    )
    memory = corrected(request, fit(request), activation, placement)
    log.info(
        "KV cache %s = %d blocks of %d tokens; longest sequence %d tokens; first step %.2f s",
        format_size(memory.kv_cache_bytes),
        memory.num_blocks,
        cache.block_size,
        memory.max_model_len,
        time.monotonic() - began,
    )
    return memory, activation


def corrected(request: FitRequest, memory: MemoryFit, activation: int | None, placement: Placement) -> MemoryFit:
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


def _settle(placement: Placement) -> None:
    """What only the start needed goes back: the room of its first steps, and libraries' pages that were read to bind them."""
    if placement.device.type == "cpu":
        give_back_unused()
    if placement.kernels is not None:
        let_go_of_files()


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
    if options.tensor_parallel_size < 1:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, "the tensor parallel size must be at least one process"
        )
    if options.max_model_len is not None and options.max_model_len < 1:
        raise PagemillError(FailureReason.INVALID_CONFIGURATION, "the maximum model length must be at least one token")
