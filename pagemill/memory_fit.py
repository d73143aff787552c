"""Whether a model fits a memory, and what would: one pure function, used by the CLI, the operator and the server's start.

    memory x utilization = weights + activation reserve + KV cache          (a GPU; on CPU the KV cache is given)
    KV bytes a token     = 2 x layers x KV heads x head dimension x element size
    blocks               = KV cache // (block size x KV bytes a token)

The activation reserve is what one step needs beside the weights: for each token of the step's budget the tensors of a layer, for
each sampled sequence three rows of logits, the rotary tables, and on CPU the keys and values that attention gathers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pagemill.failures import Failure, FailureReason
from pagemill.model_config import ModelConfig
from pagemill.sizes import format_size
from pagemill.tensor_parallel import divided, indivisible
from pagemill.weight_storage import stored_bytes, unquantizable

_LOGITS_BYTES = 4  # float32, whatever the model's dtype
_ROWS_OF_LOGITS = 3  # a sampled sequence's, as it comes out of the head, in float32, and the copy that penalties change
TOKENS_AT_ONCE = 1 << 14  # the CPU way: whose keys and values one product of attention gathers, at most
_TILE = 256  # tokens; the CPU way: attention's result is merged from one a tile
_HEAD_STEP, _WIDEST_HEAD = 16, 256  # elements: heads that our own attention has code for; others are torch's
_LIBRARIES = 32 << 20  # what the libraries of a device keep for themselves
_GIB = 1024**3
_MOST_BYTES = 1 << 50  # a GPU of a PiB
_LENGTH_STEP = 64  # suggested lengths are rounded down to this many tokens
WARN_UTILIZATION = 0.95
DEFAULT_BLOCK_SIZE = 16  # tokens a block where nobody says: beginnings of prompts are shared in steps of that many


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What is asked for. Sizes in bytes, lengths in tokens."""

    config: ModelConfig
    dtype_bytes: int  # of a KV element, and of a weight where `weights` says no other, as computed with
    memory_bytes: int  # what the device has
    utilization: float = 0.9  # the share of it that is ours
    block_size: int = 16
    max_model_len: int | None = None  # None: the largest that the model allows and the memory holds
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    kv_cache_bytes: int | None = None  # given: taken as it is (the CPU way)
    measured_activation: int | None = None  # of the server's first step: goes before the estimate
    packs_weights: bool = False  # torch on CPU: a tied output head is packed for its product, a copy beside the table
    weights: str | None = None  # the type that matrices are kept in ("float32", …, "int8"); None: as computed
    native: bool = False  # our own kernels compute on CPU: attention gathers nothing, and values are float32
    table: str | None = None  # that of an embedding table which is not the output head's matrix too; None: as `weights`
    tensor_parallel_size: int = (
        1  # processes that share each layer; all sizes above and what comes out are of one of them
    )

    @property
    def part(self) -> ModelConfig:
        """What one process computes."""
        return divided(self.config, self.tensor_parallel_size)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """What came out. `failure` says why it does not fit and what would; the figures stand in any case."""

    weights_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    num_blocks: int
    max_concurrent_tokens: int
    max_model_len: int  # resolved
    max_model_len_that_fits: int  # 0: not even one block
    failure: Failure | None


def fit(request: FitRequest) -> MemoryFit:
    """Divide the memory; never raises for a model that does not fit."""
    if fault := indivisible(request.config, request.tensor_parallel_size):
        return _refused(f"{fault}: set another tensor parallel size (gpu.count), or 1")
    if request.weights == "int8" and (fault := unquantizable(request.config)):
        return _refused(f"{fault}: leave --quantization (engine.quantization) out")
    config = request.part
    per_token = config.kv_bytes_per_token(request.dtype_bytes)
    if not per_token:
        return _fit_without_cache(request)
    weights = weights_bytes(request)
    activation = activation_bytes(request)
    if request.kv_cache_bytes is not None:
        available = request.kv_cache_bytes
    else:
        available = int(request.memory_bytes * request.utilization) - weights - activation
    blocks = max(0, available) // (request.block_size * per_token)
    tokens = blocks * request.block_size
    longest = min(config.longest_sequence, tokens)
    wanted = request.max_model_len if request.max_model_len is not None else longest
    return MemoryFit(
        weights_bytes=weights,
        activation_bytes=activation,
        kv_bytes_per_token=per_token,
        kv_cache_bytes=blocks * request.block_size * per_token,
        num_blocks=blocks,
        max_concurrent_tokens=tokens,
        max_model_len=wanted,
        max_model_len_that_fits=longest,
        failure=_failure(request, weights + activation, per_token, wanted, longest),
    )


def _fit_without_cache(request: FitRequest) -> MemoryFit:
    """An encoder: a text is computed in one step, alone when it is longer than the step's budget, and nothing of it is kept."""
    config = request.config
    longest = config.longest_sequence
    wanted = request.max_model_len if request.max_model_len is not None else longest
    weights = weights_bytes(request)
    tokens = max(request.max_num_batched_tokens, wanted)
    attention = 4 * config.num_attention_heads * config.head_dim
    size = max(2, request.dtype_bytes)
    widest = (3 * config.hidden_size + max(2 * config.intermediate_size, attention)) * size
    if request.native:
        # float32: the stream, and what threads gather of attention; then queries, keys, values, what they gave; rows at work.
        rounded = config.hidden_size if size < 4 else 0
        widest = 8 * config.hidden_size + (4 * config.hidden_size + config.intermediate_size + rounded) * size
    activation = tokens * widest
    failure, total = None, weights + activation
    if wanted > longest:
        failure = _too_long(wanted, longest, longest)
    elif request.kv_cache_bytes is None and total > request.memory_bytes * request.utilization:
        gib = _nearest(total / request.utilization / _GIB, lambda gib: int(gib * _GIB) * request.utilization >= total)
        failure = Failure(
            FailureReason.OUT_OF_MEMORY,
            f"the model and one step of {tokens} tokens need {format_size(total)}, but only "
            f"{format_size(int(request.memory_bytes * request.utilization))} are ours: use a device of {gib} GiB or more",
            {"gpu.memoryGiB": gib},
        )
    return MemoryFit(weights, activation, 0, 0, 0, 0, wanted, longest, failure)


def _refused(why: str) -> MemoryFit:
    return MemoryFit(0, 0, 0, 0, 0, 0, 0, 0, Failure(FailureReason.INVALID_CONFIGURATION, why))


def weights_bytes(request: FitRequest) -> int:
    """What the weights take in memory, in bytes."""
    config = request.part
    if request.weights is not None and config.stored_parameters is None:
        return stored_bytes(config, request.weights, request.table or request.weights)
    copies = config.vocab_size * config.hidden_size if request.packs_weights and config.tie_word_embeddings else 0
    return (config.num_parameters() + copies) * request.dtype_bytes


def activation_bytes(request: FitRequest) -> int:
    """The reserve beside weights and cache, in bytes: an upper estimate that the server's first step must stay below."""
    config, size = request.part, 4 if request.native else max(2, request.dtype_bytes)
    per_token = config.kv_bytes_per_token(request.dtype_bytes)
    nobodys = request.block_size * per_token  # the block that no sequence has
    if request.measured_activation is not None:
        return request.measured_activation + nobodys
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    # Everything that lives in a layer, as if nothing were freed before its end: allocators keep holes.
    attention = (6 * heads + 5 * kv_heads) * width
    inner = max(config.intermediate_size, config.experts.intermediate_size if config.experts is not None else 0)
    layer = request.max_num_batched_tokens * (4 * config.hidden_size + 3 * inner + attention)
    longest, gathered = request.max_model_len or config.longest_sequence, 0
    if request.kv_cache_bytes is not None:
        longest = min(longest, request.kv_cache_bytes // per_token)
    if request.kv_cache_bytes is not None and not (
        request.native and width % _HEAD_STEP == 0 and width <= _WIDEST_HEAD
    ):
        tiles = max(request.max_num_seqs, _TILE) * -(-longest // _TILE)
        gathered = 2 * (max(longest, TOKENS_AT_ONCE) * kv_heads + tiles * heads) * width
    rotary = 2 * longest * width
    rows = request.max_num_seqs * config.vocab_size * _LOGITS_BYTES * _ROWS_OF_LOGITS
    return (layer + rotary + gathered) * size + rows + nobodys + _LIBRARIES


def _failure(request: FitRequest, fixed: int, per_token: int, wanted: int, longest: int) -> Failure | None:
    limit = request.config.longest_sequence
    if wanted > limit and longest:
        return _too_long(wanted, limit, longest)
    wanted = min(wanted, limit)
    if longest >= max(wanted, 1):
        return None
    block_bytes = request.block_size * per_token
    needed = (
        -(-max(wanted, 1) // request.block_size) * block_bytes
    )  # one sequence of the wanted length, in whole blocks
    suggestion: dict[str, str | int | float] = {}
    ways = []
    if nearest := longest // _LENGTH_STEP * _LENGTH_STEP or longest:
        suggestion["maxModelLen"] = nearest
        ways.append(f"set maxModelLen to {nearest}")
    if request.kv_cache_bytes is not None:
        gib = _nearest(needed / _GIB, lambda gib: int(gib * _GIB) >= needed)
        suggestion["engine.kvCacheGiB"] = gib
        ways.append(f"give the cache {gib} GiB (engine.kvCacheGiB)")
        has = f"the KV cache has {format_size(request.kv_cache_bytes)}"
    else:
        total = fixed + needed
        if total <= request.memory_bytes:
            share = _nearest(total / request.memory_bytes, lambda share: int(request.memory_bytes * share) >= total)
            suggestion["gpuMemoryUtilization"] = share
            ways.append(f"set gpuMemoryUtilization to {share}")
        if total / request.utilization <= _MOST_BYTES:  # a share of next to nothing is no reason to look for such a GPU
            gib = _nearest(
                total / request.utilization / _GIB, lambda gib: int(int(gib * _GIB) * request.utilization) >= total
            )
            suggestion["gpu.memoryGiB"] = gib
            ways.append(f"use a GPU of {gib} GiB or more")
        elif not ways:
            ways.append("raise gpuMemoryUtilization, and use a larger GPU")
        left = max(0, int(request.memory_bytes * request.utilization) - fixed)
        has = f"{format_size(left)} of {format_size(request.memory_bytes)} is left for the KV cache"
    what = f"one sequence of {wanted} tokens" if wanted else "a single block"
    return Failure(
        FailureReason.KV_CACHE_TOO_SMALL,
        f"{what} needs {format_size(needed)} of KV cache, but {has}: {' or '.join(ways)}",
        suggestion,
    )


def _too_long(wanted: int, limit: int, longest: int) -> Failure:
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"maxModelLen {wanted} is more than the {limit} tokens that the model was made for: set at most {longest}",
        {"maxModelLen": longest},
    )


def _nearest(value: float, enough: Callable[[float], bool]) -> float:
    """The least hundredth from `value` on that is enough: what we suggest must fit when it is computed the other way round."""
    hundredths = math.ceil(value * 100)
    while not enough(hundredths / 100):
        hundredths += 1
    return hundredths / 100
