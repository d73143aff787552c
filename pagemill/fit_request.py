"""What `memory_fit` is asked before there is a server: what was asked for, and the server's own values where that says nothing.

Pure. A contract test holds these defaults against the server's. Used by the operator's `plan` and by `preflight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pagemill.failures import Failure, FailureReason
from pagemill.memory_fit import DEFAULT_BLOCK_SIZE, FitRequest, MemoryFit, fit, weights_bytes
from pagemill.model_files import ModelFiles
from pagemill.sizes import format_size
from pagemill.weight_storage import kept_type

GIB = 1024**3
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 512  # the server's own
CPU_KV_CACHE = 4 * GIB  # what a CPU server takes at most where it is not told
CPU_CACHE_SHARE = 0.4  # of the memory that its weights leave
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Ask:
    """Sizes in bytes, lengths in tokens; None: left to the server."""

    on_cpu: bool
    memory: int | None  # of one GPU; on CPU what the container may use; None: nobody says
    utilization: float = 0.9
    dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache: int | None = None  # the CPU way
    host_cache: int = 0  # the second tier
    gpus: int = 1
    quantization: str = "none"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether it fits. `capacity` has the keys of /ready's; None where it depends on what nobody has said."""

    fit: Literal["Fits", "Unknown"]
    capacity: Mapping[str, int] | None = None
    failure: Failure | None = None


def request_of(ask: Ask, files: ModelFiles) -> FitRequest:
    """For `fit`. A GPU of unknown size has no memory here: look before you ask.

    What a CPU server takes may depend on its processor: whether the native kernels compute, which keep weights in 16 bits, and
    whether it computes in bfloat16. Nobody can see that from here, so these are the larger figures, of float32.
    """
    element = _BYTES.get(ask.dtype, 4 if ask.on_cpu else 2)
    length = ask.max_model_len or (files.embedding.max_length if files.embedding is not None else None)
    quantised = ask.on_cpu and ask.quantization == "int8"
    request = FitRequest(
        config=files.config,
        dtype_bytes=element,
        memory_bytes=0 if ask.on_cpu else ask.memory or 0,
        utilization=ask.utilization,
        block_size=ask.block_size or DEFAULT_BLOCK_SIZE,
        max_model_len=length,
        max_num_batched_tokens=ask.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=ask.max_num_seqs or MAX_NUM_SEQS,
        kv_cache_bytes=ask.kv_cache,
        packs_weights=ask.on_cpu and element == 4 and not quantised,
        weights="int8" if quantised else None,
        native=quantised,
        table=(kept_type(files.tensors) if ask.dtype == "auto" else ask.dtype) if quantised else None,
        tensor_parallel_size=ask.gpus,
    )
    if not ask.on_cpu or ask.kv_cache is not None:
        return request
    return replace(request, kv_cache_bytes=_derived_cache(request, ask.memory))


def judge(ask: Ask, files: ModelFiles) -> Judgement:
    """What `fit` says, where enough is known to say it."""
    if not ask.on_cpu and ask.memory is None:
        return Judgement("Unknown")
    request = request_of(ask, files)
    found = fit(request)
    failure = found.failure or _beyond_limit(ask, found)
    if failure is not None:
        return Judgement("Unknown", failure=failure)
    guessed = ask.on_cpu and ask.memory is None and ask.kv_cache is None  # the server takes a share of what is free
    return Judgement("Fits", None if guessed else capacity(found))


def capacity(found: MemoryFit) -> dict[str, int]:
    """What a replica will say on /ready."""
    return {
        "weightsBytes": found.weights_bytes,
        "kvCacheBytes": found.kv_cache_bytes,
        "kvBlocks": found.num_blocks,
        "maxConcurrentTokens": found.max_concurrent_tokens,
        "maxModelLenThatFits": found.max_model_len_that_fits,
    }


def _derived_cache(request: FitRequest, memory: int | None) -> int:
    """As the server derives it, if all that the container may use is free; never more than its sequences could use."""
    if memory is None:
        return CPU_KV_CACHE
    derived = min(CPU_KV_CACHE, int(CPU_CACHE_SHARE * max(0, memory - weights_bytes(request))))
    longest = request.max_model_len or request.config.longest_sequence
    blocks = request.max_num_seqs * -(-longest // request.block_size)
    return min(derived, blocks * request.block_size * request.config.kv_bytes_per_token(request.dtype_bytes))


def _beyond_limit(ask: Ask, found: MemoryFit) -> Failure | None:
    """A CPU server takes all of it from its container's memory, and ends itself where that can't be."""
    if not ask.on_cpu or ask.memory is None:
        return None
    parts = {
        "the weights": found.weights_bytes,
        "a step": found.activation_bytes,
        "the KV cache": found.kv_cache_bytes,
        "the second tier": ask.host_cache,
    }
    if (total := sum(parts.values())) <= ask.memory:
        return None
    listed = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items() if size)
    enough = f"{-(-total // (GIB // 1024))}Mi"
    return Failure(
        FailureReason.OUT_OF_MEMORY,
        f"{listed} take {format_size(total)}, but the container may use {format_size(ask.memory)}: "
        f"raise resources.limits.memory to {enough} and what the process itself needs",
        {"resources.limits.memory": enough},
    )
