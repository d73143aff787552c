"""What `memory_fit` is asked about an LLMDeployment: the spec's numbers; `pagemill.fit_request` has the server's own.

Pure. Called by the `plan` command; the preflight asks the same with the flags that `render` gives the server.
"""

from __future__ import annotations

from pagemill.failures import FailureReason, PagemillError
from pagemill.fit_request import GIB, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Ask, request_of
from pagemill.memory_fit import FitRequest
from pagemill.model_files import ModelFiles
from pagemill_operator.spec import LLMDeploymentSpec

__all__ = ["GIB", "MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SEQS", "ask_of", "fit_request"]


def fit_request(spec: LLMDeploymentSpec, files: ModelFiles, gpu_memory: int | None) -> FitRequest:
    """`gpu_memory` in bytes goes before `gpu.memoryGiB`; raises PagemillError where a GPU's memory is not said anywhere."""
    if gpu_memory is None and spec.gpu.memory_gib is not None:
        gpu_memory = int(spec.gpu.memory_gib * GIB)
    if spec.accelerator == "gpu" and gpu_memory is None:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            "how much memory has the GPU? say --gpu-memory 24GiB, or set gpu.memoryGiB",
        )
    return request_of(ask_of(spec, gpu_memory if spec.accelerator == "gpu" else None), files)


def ask_of(spec: LLMDeploymentSpec, memory: int | None) -> Ask:
    """`memory` in bytes: of one GPU, or what a container on CPU may use."""
    engine = spec.engine
    return Ask(
        on_cpu=spec.accelerator == "cpu",
        memory=memory,
        utilization=spec.gpu_memory_utilization,
        dtype=engine.dtype,
        block_size=engine.block_size,
        max_model_len=spec.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_cache=None if engine.kv_cache_gib is None else int(engine.kv_cache_gib * GIB),
        host_cache=int((engine.host_cache_gib or 0) * GIB),
        gpus=spec.gpu.count,
        quantization=engine.quantization or "none",
    )
