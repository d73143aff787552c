"""From headers to a model that answers: tokenizer, template, weights, engine. Runs in a thread while /health is served.

The one place that imports torch, when it is called: a model that can't be served must be refused before that takes its seconds.
Called by `serve` and by `LLM`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pagemill import garbage, model_source
from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import WARN_UTILIZATION, MemoryFit
from pagemill.model_files import ModelFiles
from pagemill.sizes import format_size
from pagemill_server import cuda_failures
from pagemill_server.api.service import Generator, Loaded
from pagemill_server.config import ChatOptions, EngineLimits, ModelOptions
from pagemill_server.engine.encoder import EncoderEngine
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.ports import EngineClient, ModelRunner
from pagemill_server.generation_config import GenerationDefaults
from pagemill_server.lifecycle import Capacity, Lifecycle, Phase
from pagemill_server.settings import Settings
from pagemill_server.task import embedding_config
from pagemill_server.text.chat_formats import chat_formats
from pagemill_server.text.detokenizer import TokenBytes
from pagemill_server.text.grammar import GrammarCompiler
from pagemill_server.text.tokenizer import ModelTokenizer, load_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What loading brings; the engine has no thread yet. It generates or it embeds: either `generator` or `embedding` is None."""

    engine: Engine | EncoderEngine
    limits: EngineLimits
    tokenizer: ModelTokenizer
    generator: Generator | None
    embedding: EmbeddingConfig | None
    # Ends the threads and workers that it came with; nothing may be computed afterwards.
    close: Callable[[], None] = lambda: None
    # Why no later step can succeed, known before one fails; None: it can.
    trouble: Callable[[], str | None] = lambda: None

    def answering(self, engine: EngineClient) -> Loaded:
        """As the API has it, behind the engine's message boundary."""
        return Loaded(engine, self.limits, self.tokenizer, self.generator, self.embedding)


def load(
    settings: Settings,
    files: ModelFiles,
    lifecycle: Lifecycle,
    measured: Callable[[ModelRunner], ModelRunner] = lambda runner: runner,
) -> LoadedModel:
    """Raises PagemillError. `measured` may put something around the runner."""
    tokenizer, generator, embedding = front_parts(settings, files)
    if isinstance(files.config, EncoderConfig):
        assert embedding is not None, "an encoder always has one"
        return _load_encoder(settings, files, tokenizer, embedding, lifecycle, measured)
    return _load_decoder(settings, files, tokenizer, generator, embedding, lifecycle, measured)


def front_parts(
    settings: Settings, files: ModelFiles
) -> tuple[ModelTokenizer, Generator | None, EmbeddingConfig | None]:
    """What a model has beside its engine: it generates or it embeds. Raises PagemillError; needs no torch."""
    _check(settings, files)
    embedding = embedding_config(files, settings.model.task)
    tokenizer = load_tokenizer(files)
    generator = _generator(settings.chat, files, tokenizer) if embedding is None else None
    return tokenizer, generator, embedding


def _load_decoder(
    settings: Settings,
    files: ModelFiles,
    tokenizer: ModelTokenizer,
    generator: Generator | None,
    embedding: EmbeddingConfig | None,
    lifecycle: Lifecycle,
    measured: Callable[[ModelRunner], ModelRunner],
) -> LoadedModel:
    module = _import_model("load")
    lifecycle.enter(Phase.LOADING_WEIGHTS)
    with _out_of_memory(files, settings.cache.gpu_memory_utilization):
        runner, limits, memory = module.load_runner(
            files,
            _bounded(settings.model, embedding),
            settings.cache,
            settings.scheduler,
            _progress(lifecycle, "loading weights"),
            partial(lifecycle.enter, Phase.WARMUP),
            embedding or LAST_TOKEN,
            None if generator is None else generator.grammars,
        )
    lifecycle.memory, lifecycle.capacity = memory, _capacity(memory.fit)
    engine = Engine(
        measured(runner),
        limits,
        settings.scheduler,
        settings.model.seed,
        prefix_caching=settings.cache.prefix_caching,
    )
    return LoadedModel(engine, limits, tokenizer, generator, embedding, runner.close, runner.trouble)


def _generator(options: ChatOptions, files: ModelFiles, tokenizer: ModelTokenizer) -> Generator:
    formats = chat_formats(tokenizer, options)
    defaults = GenerationDefaults.of(files, options)
    logger.info("a request that names no sampling gets %s", defaults)
    eos_ids = tuple(dict.fromkeys((*tokenizer.eos_ids, *defaults.eos_token_ids)))
    return Generator(
        TokenBytes(tokenizer.backend, eos_ids),
        formats.template,
        eos_ids,
        GrammarCompiler(tokenizer.backend, eos_ids, files.config.vocab_size),
        defaults,
        tool_format=formats.tool_format,
        reasoning=formats.reasoning,
    )


def _load_encoder(
    settings: Settings,
    files: ModelFiles,
    tokenizer: ModelTokenizer,
    embedding: EmbeddingConfig,
    lifecycle: Lifecycle,
    measured: Callable[[ModelRunner], ModelRunner],
) -> LoadedModel:
    module = _import_model("load_encoder")
    lifecycle.enter(Phase.LOADING_WEIGHTS)
    with _out_of_memory(files, settings.cache.gpu_memory_utilization):
        runner, limits, memory = module.load_encoder(
            files,
            files.config,
            embedding,
            _bounded(settings.model, embedding),
            settings.cache,
            settings.scheduler,
            _progress(lifecycle, "loading weights"),
            partial(lifecycle.enter, Phase.WARMUP),
        )
    lifecycle.memory, lifecycle.capacity = memory, _capacity(memory.fit)
    engine = EncoderEngine(measured(runner), limits, settings.scheduler)
    return LoadedModel(engine, limits, tokenizer, None, embedding)


def _check(settings: Settings, files: ModelFiles) -> None:
    """What can be said before anything is loaded."""
    if settings.model.load_format not in ("auto", files.format):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"{files.path} is {files.format}, and --load-format asks for {settings.model.load_format}: leave it out",
        )
    if (share := settings.cache.gpu_memory_utilization) > WARN_UTILIZATION:
        logger.warning(
            "--gpu-memory-utilization %g is above %g: what the driver and other processes take may end the server while it "
            "works",
            share,
            WARN_UTILIZATION,
        )


def _bounded(options: ModelOptions, embedding: EmbeddingConfig | None) -> ModelOptions:
    """An embedding model's own files bound its texts, unless the user says otherwise."""
    if embedding is None or options.max_model_len is not None:
        return options
    return replace(options, max_model_len=embedding.max_length)


@contextmanager
def _out_of_memory(files: ModelFiles, utilization: float) -> Iterator[None]:
    """The machine's refusal, or its GPU's, as one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (failure := cuda_failures.classify(f"{type(error).__name__}: {error}", utilization)) is not None:
            raise PagemillError(failure.reason, failure.message, failure.suggestion) from error
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise PagemillError(
            FailureReason.OUT_OF_MEMORY,
            f"the machine's memory does not hold the model ({format_size(files.weights_bytes)} as stored) and its KV cache: "
            "lower --kv-cache-memory-bytes or use a machine with more memory",
        ) from error


def download(model: str, lifecycle: Lifecycle) -> ModelFiles:
    """Bring a model from the hub. Raises PagemillError; a start that is cut short is gone on with by the next."""
    lifecycle.enter(Phase.DOWNLOADING)
    files = model_source.fetch(model, _progress(lifecycle, f"fetching {model}"))
    lifecycle.enter(Phase.STARTING)
    lifecycle.progress(0, files.weights_bytes)
    return files


def _import_model(module: str) -> Any:
    # Threads that spin while they wait make a step twenty times slower beside any other busy process; read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with garbage.unsearched():
        return importlib.import_module(f"pagemill_server.model.{module}")


def _progress(lifecycle: Lifecycle, what: str) -> Callable[[int, int], None]:
    """Tells the lifecycle every time and the log in steps of 10%."""
    told = -1

    def progress(done: int, total: int) -> None:
        nonlocal told
        lifecycle.progress(done, total)
        step = 10 * done // total if total else 10
        if step > told:
            told = step
            logger.info("%s: %d%% of %s", what, 10 * step, format_size(total))

    return progress


def _capacity(fit: MemoryFit) -> Capacity:
    return Capacity(
        fit.weights_bytes, fit.kv_cache_bytes, fit.num_blocks, fit.max_concurrent_tokens, fit.max_model_len_that_fits
    )
