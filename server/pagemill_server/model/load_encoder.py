"""From a described encoder to one that runs: place, fit, load, one widest step. As `load`, without a cache to divide."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from pagemill.embedding_config import EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import fit
from pagemill.model_files import ModelFiles
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.memory import MemoryUse, StartMemory
from pagemill_server.model.bert import Bert
from pagemill_server.model.checkpoint import Checkpoint, Progress
from pagemill_server.model.device import Placement, place_encoder
from pagemill_server.model.division import divide
from pagemill_server.model.encoder import Encoder, EncoderRunner
from pagemill_server.model.memory_meter import make_meter
from pagemill_server.model.native_encoder import NativeBert, takes
from pagemill_server.model.native_kernels import make_kernels

log = logging.getLogger(__name__)


def load_encoder(
    files: ModelFiles,
    config: EncoderConfig,
    embedding: EmbeddingConfig,
    options: ModelOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    progress: Progress,
    warming: Callable[[], None] = lambda: None,
) -> tuple[EncoderRunner, EngineLimits, StartMemory]:
    """Load the model; raises PagemillError with what to change when it can't be had here.

    `options.max_model_len` is resolved: what the model's files say, unless the user said otherwise.
    """
    _check(options, cache)
    placement = place_encoder(options, files, native=takes(config))
    memory = fit(divide(config, options, cache, scheduler, placement))
    torch.set_num_threads(placement.threads)
    began = time.monotonic()
    meter = make_meter(placement.device)
    before = meter.held()
    model = make_encoder(files, config, placement, progress)
    after = meter.held()
    weights = None if after is None or before is None else after - before
    loaded = time.monotonic() - began
    warming()
    runner = EncoderRunner(model, embedding, placement.device)
    runner.run(_widest(2, 2))  # brings in what is loaded at its first use
    widest = _widest(max(scheduler.max_num_batched_tokens, memory.max_model_len), memory.max_model_len)
    start = StartMemory(memory, MemoryUse(weights, meter.peak(partial(runner.run, widest)), 0))
    log.info(
        "loaded %s in %.1f s: %s on %s, %d threads; texts of up to %d tokens, %s pooling",
        files.path,
        loaded,
        placement,
        placement.device,
        placement.threads,
        memory.max_model_len,
        embedding.pooling,
    )
    log.info("memory: %s", start)
    return (
        runner,
        EngineLimits(memory.max_model_len, config.vocab_size, num_blocks=0, block_size=cache.block_size),
        start,
    )


def make_encoder(
    files: ModelFiles, config: EncoderConfig, placement: Placement, progress: Progress = lambda done, total: None
) -> Encoder:
    """Its weights read, by the kernels that were chosen."""
    if placement.kernels is None:
        return Bert(Checkpoint(files, placement.dtype, placement.device, progress), config)
    kernels = make_kernels(placement.threads, placement.dtype, placement.weights, placement.table)
    return NativeBert(Checkpoint(files, placement.dtype, placement.device, progress, kernels=kernels), config)


def _widest(num_tokens: int, longest: int) -> SchedulerOutput:
    """A step of so many tokens in the longest texts that there can be."""
    lengths = [longest] * (num_tokens // longest) + ([num_tokens % longest] if num_tokens % longest else [])
    texts = (
        ScheduledSequence(seq_id, (0,) * length, 0, (), None, seed=0, output_position=0, pooling=True)
        for seq_id, length in enumerate(lengths)
    )
    return SchedulerOutput(tuple(texts), num_tokens)


def _check(options: ModelOptions, cache: CacheConfig) -> None:
    for setting, asked in (
        ("a tensor parallel size", options.tensor_parallel_size != 1),
        ("a second tier of the KV cache", cache.offloading_bytes > 0),
    ):
        if asked:
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION,
                f"the model is an encoder, for which {setting} means nothing: leave it out",
            )
