"""What `memory_fit` is asked about an LLMDeployment: the spec's numbers, and the server's own where it leaves them out.

Pure. A contract test holds these defaults against the server's. Called by the `plan` command.
"""

from __future__ import annotations

from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, default_block_size
from pagemill.model_files import ModelFiles
from pagemill_operator.spec import LLMDeploymentSpec

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 1024**3
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 512  # the server's own
CPU_KV_CACHE = 4 * GIB  # what a CPU server takes at most where kvCacheGiB is left out


def fit_request(spec: LLMDeploymentSpec, files: ModelFiles, gpu_memory: int | None) -> FitRequest:
    """`gpu_memory` in bytes goes before `gpu.memoryGiB`; raises PagemillError where a GPU's memory is not said anywhere."""
    engine = spec.engine
    on_cpu = spec.accelerator == "cpu"
    memory, cache = 0, None
    if on_cpu:
        cache = CPU_KV_CACHE if engine.kv_cache_gib is None else int(engine.kv_cache_gib * GIB)
    elif gpu_memory is not None:
        memory = gpu_memory
    elif spec.gpu.memory_gib is not None:
        memory = int(spec.gpu.memory_gib * GIB)
    else:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            "how much memory has the GPU? say --gpu-memory 24GiB, or set gpu.memoryGiB",
        )
    element = _BYTES.get(engine.dtype, 4 if on_cpu else 2)
    return FitRequest(
        config=files.config,
        dtype_bytes=element,
        memory_bytes=memory,
        utilization=spec.gpu_memory_utilization,
        block_size=engine.block_size or default_block_size("cpu" if on_cpu else "cuda"),
        max_model_len=spec.max_model_len or (files.embedding.max_length if files.embedding is not None else None),
        max_num_batched_tokens=engine.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=engine.max_num_seqs or MAX_NUM_SEQS,
        kv_cache_bytes=cache,
        packs_weights=on_cpu and element == 4,
        tensor_parallel_size=spec.gpu.count,
    )
