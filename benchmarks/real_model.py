"""A real model in this process, without HTTP and without a thread: what the benchmarks of the engine run on.

The same loader as the server's, so the same kernels, dtype and memory. Loaded once a command: engines of any scheduler settings are
made on its runner. Used by `fit_step`, `paged_vs_contiguous`, `memory_techniques`, `block_size` and `step_curve`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pagemill import model_source
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.ports import ModelRunner

DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class RealModel:
    """Weights and a KV pool, ready to run."""

    files: ModelFiles
    runner: ModelRunner
    limits: EngineLimits
    load_s: float


def load(
    name: str,
    cache: CacheConfig,
    scheduler: SchedulerConfig | None = None,
    *,
    dtype: str = "auto",
    longest: int | None = None,
) -> RealModel:
    """Raises PagemillError when it can't be served here."""
    files = model_source.find(name)
    if files is None:
        raise PagemillError(
            FailureReason.MODEL_NOT_FOUND, f"{name} is not on this machine: `make model` fetches the demo model"
        )
    from pagemill_server.model.load import load_runner  # torch's seconds only when a model runs

    began = time.perf_counter()
    options = ModelOptions(name, (name,), dtype=dtype, max_model_len=longest)
    runner, limits, _ = load_runner(files, options, cache, scheduler or SchedulerConfig(), lambda done, total: None)
    return RealModel(files, runner, limits, time.perf_counter() - began)
