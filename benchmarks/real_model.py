"""A real model in this process, without HTTP and without a thread: what the benchmarks of the engine run on.

The same loader as the server's, so the same kernels and the same memory; float32, so that a size in tokens is a size in bytes.
Engines of any scheduler settings are made on one loaded runner. Used by `fit_step`, `paged_vs_contiguous`, `memory_techniques`,
`block_size`, `step_curve` and `grammar_masks`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from pagemill import model_source
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import AddRequest, RequestOutput, SamplingParams
from pagemill_server.text.grammar import GrammarCompiler
from pagemill_server.text.tokenizer import load_tokenizer

DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
FLOAT32 = 4  # bytes
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class RealModel:
    """Weights and a KV pool, ready to run."""

    files: ModelFiles
    runner: ModelRunner
    limits: EngineLimits
    load_s: float
    grammars: GrammarCompiler

    @property
    def block_bytes(self) -> int:
        return self.limits.block_size * self.files.config.kv_bytes_per_token(FLOAT32)


def load(
    name: str,
    *,
    kv_tokens: int,
    host_tokens: int = 0,
    block_size: int = 32,
    scheduler: SchedulerConfig | None = None,
    longest: int | None = None,
) -> RealModel:
    """Raises PagemillError when it can't be served here."""
    files = model_source.find(name)
    if files is None:
        what = f"{name} is not on this machine (`make model` fetches {DEMO_MODEL})"
        raise PagemillError(FailureReason.MODEL_NOT_FOUND, what)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads, which is now
    from pagemill_server.model.load import load_runner

    tokenizer = load_tokenizer(files)
    grammars = GrammarCompiler(tokenizer.backend, tokenizer.eos_ids, files.config.vocab_size)
    per_block = block_size * files.config.kv_bytes_per_token(FLOAT32)
    cache = CacheConfig(
        block_size=block_size,
        memory_bytes=-(-kv_tokens // block_size) * per_block,
        offloading_bytes=-(-host_tokens // block_size) * per_block,
    )
    began = time.perf_counter()
    options = ModelOptions(name, (name,), dtype="float32", max_model_len=longest)
    runner, limits, _ = load_runner(
        files, options, cache, scheduler or SchedulerConfig(), lambda done, total: None, grammars=grammars
    )
    return RealModel(files, runner, limits, time.perf_counter() - began, grammars)


def prompt(vocab_size: int, length: int, number: int) -> tuple[int, ...]:
    """Token ids that a model has; another number, another prompt."""
    return tuple((number * 7919 + position * 31) % vocab_size for position in range(length))


def request(name: str, token_ids: tuple[int, ...], max_tokens: int, *, salt: str = "") -> AddRequest:
    """A greedy request of exactly so many tokens, that arrives now."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(name, token_ids, sampling, time.monotonic(), cache_salt=salt)


def finish(engine: Engine) -> list[RequestOutput]:
    """Step until nothing is left."""
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step()
    return outputs
