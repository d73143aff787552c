"""How this machine's memory is divided, before a weight is read: weights, a step's activations, the KV cache, the host tier.

`pagemill.memory_fit` reckons; here it is told what the machine has and what was asked. On CPU the cache is given or derived and
everything together must be free; on a GPU the cache is what its share leaves. Called by `load`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagemill.failures import Failure, FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, MemoryFit, fit, weights_bytes
from pagemill.model_config import ModelConfig
from pagemill.sizes import format_size
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.model import cuda_device, host_limits
from pagemill_server.model.device import Placement
from pagemill_server.model.linear import can_pack

MOST_CACHE = 4 << 30  # bytes: what a CPU server takes at most without being told
CACHE_SHARE = 0.4  # of the memory that is free once the weights are in
_WAYS = {
    "the second tier": "--kv-offloading-size",
    "the KV cache": "--kv-cache-memory-bytes",
    "a step": "--max-num-batched-tokens or --max-num-seqs",
}


def divide(
    config: ModelConfig, options: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig, placement: Placement
) -> FitRequest:
    """What `memory_fit.fit` is to be asked about this machine, and fits. Raises PagemillError with what would."""
    size, native = placement.dtype.itemsize, placement.kernels is not None
    free = host_limits.available_memory()
    on_cpu = placement.device.type == "cpu"
    request = FitRequest(
        config=config,
        dtype_bytes=size,
        memory_bytes=free if on_cpu else cuda_device.memory(placement.device, cache.gpu_memory_utilization),
        utilization=cache.gpu_memory_utilization,
        block_size=cache.block_size,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        packs_weights=on_cpu and not native and placement.dtype == torch.float32 and can_pack(),
        weights=placement.weights if native or placement.weights == "int8" else None,
        table=placement.table if native else None,
        native=native,
        tensor_parallel_size=max(1, options.tensor_parallel_size),
    )
    if on_cpu:
        request = replace(request, kv_cache_bytes=_cpu_cache(request, cache.memory_bytes))
    elif cache.memory_bytes is not None:
        request = replace(request, kv_cache_bytes=cache.memory_bytes)
    memory = fit(request)
    failure = memory.failure or _no_tier(request, cache.offloading_bytes)
    processes = request.tensor_parallel_size if on_cpu else 0  # that take their parts of this machine's memory
    failure = failure or _beyond_host(memory, cache.offloading_bytes, free, processes)
    if failure is not None:
        raise PagemillError(failure.reason, failure.message, failure.suggestion)
    return request


def _cpu_cache(request: FitRequest, given: int | None) -> int:
    """Bytes of each process: as given, or its part of a share of what is free."""
    if given is not None:
        return given
    processes = request.tensor_parallel_size
    free = max(0, request.memory_bytes - processes * weights_bytes(request))
    derived = min(MOST_CACHE, int(CACHE_SHARE * free)) // processes
    # More than all sequences at their longest could never be used.
    longest = request.max_model_len or request.config.longest_sequence
    blocks = request.max_num_seqs * -(-longest // request.block_size)
    return min(derived, blocks * request.block_size * request.part.kv_bytes_per_token(request.dtype_bytes))


def _no_tier(request: FitRequest, offloading: int) -> Failure | None:
    block = request.block_size * request.config.kv_bytes_per_token(request.dtype_bytes)
    if not 0 < offloading < block:
        return None
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"a block of {request.block_size} tokens takes {format_size(block)}, but the second tier was given "
        f"{format_size(offloading)}: raise --kv-offloading-size or leave it out",
    )


def _beyond_host(memory: MemoryFit, offloading: int, free: int, processes: int) -> Failure | None:
    """What is taken of the host's memory must be free, or the system ends the server long after its start."""
    parts = {
        "the second tier": offloading,
        "the weights": processes * memory.weights_bytes,
        "a step": processes * memory.activation_bytes,
        "the KV cache": processes * memory.kv_cache_bytes,
    }
    if (total := sum(parts.values())) <= free:
        return None
    listed = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items() if size)
    # What alone would be enough, if anything is.
    enough = [name for name in _WAYS if parts[name] > total - free] or [name for name in _WAYS if parts[name]]
    ways = "".join(f"lower {_WAYS[name]}, " for name in enough)
    return Failure(
        FailureReason.OUT_OF_MEMORY,
        f"{listed} would take {format_size(total)}, but {format_size(free)} of this machine's memory is free: "
        f"{ways}or use a machine with more memory",
    )
