"""`LLM`'s arguments to the server's configs, each checked: what can't be is one PagemillError that names it. Pure.

`check_each` is for what comes with the prompts of a call, where it is a ValueError as theirs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pagemill import model_ref
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import DEFAULT_BLOCK_SIZE
from pagemill.sizes import parse_size
from pagemill.weight_storage import QUANTIZATIONS
from pagemill_server.config import CacheConfig, ChatOptions, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine import hot
from pagemill_server.flag_values import MOST_GIB
from pagemill_server.settings import Settings

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
TASKS = ("generate", "embed")
_GIB = 1024**3
_MOST = (1 << 31) - 1


def model_options(
    model: str,
    task: str | None,
    dtype: str,
    device: str,
    max_model_len: int | None,
    seed: int,
    tensor_parallel_size: int,
    quantization: str | None,
) -> ModelOptions:
    """Raises PagemillError."""
    if not isinstance(model, str):
        raise invalid("model", f"must be org/name or a path, not {model!r}")
    return ModelOptions(
        model=model,
        served_names=(model_ref.parse(model).location,),
        dtype=one_of("dtype", dtype, DTYPES),
        device=one_of("device", device, DEVICES),
        max_model_len=None if max_model_len is None else _whole("max_model_len", max_model_len, 1),
        seed=_whole("seed", seed, 0),
        tensor_parallel_size=_whole("tensor_parallel_size", tensor_parallel_size, 1),
        task="auto" if task is None else one_of("task", task, TASKS),
        quantization="none" if quantization is None else one_of("quantization", quantization, QUANTIZATIONS),
    )


def cache_config(
    block_size: int | None,
    gpu_memory_utilization: float,
    kv_cache_memory_bytes: int | str | None,
    enable_prefix_caching: bool,
    kv_offloading_size: float,
) -> CacheConfig:
    """`kv_offloading_size` is in GiB, as vLLM's. Raises PagemillError."""
    if not 0 < _number("gpu_memory_utilization", gpu_memory_utilization) <= 1:
        raise invalid("gpu_memory_utilization", f"must be above 0 and at most 1, not {gpu_memory_utilization}")
    if not 0 <= _number("kv_offloading_size", kv_offloading_size) <= MOST_GIB:
        raise invalid("kv_offloading_size", f"must be GiB from 0 to {MOST_GIB}, not {kv_offloading_size}")
    if not isinstance(enable_prefix_caching, bool):
        raise invalid("enable_prefix_caching", f"must be True or False, not {enable_prefix_caching!r}")
    return CacheConfig(
        block_size=DEFAULT_BLOCK_SIZE if block_size is None else _whole("block_size", block_size, 1),
        memory_bytes=None if kv_cache_memory_bytes is None else _size("kv_cache_memory_bytes", kv_cache_memory_bytes),
        gpu_memory_utilization=gpu_memory_utilization,
        prefix_caching=enable_prefix_caching,
        offloading_bytes=int(kv_offloading_size * _GIB),
    )


def scheduler_config(*, scheduling_policy: str | None, **given: Any) -> SchedulerConfig:
    """What is None stays at its default. Raises PagemillError, also for a policy that can't be had."""
    if not (scheduling_policy is None or isinstance(scheduling_policy, str)):
        raise invalid("scheduling_policy", f"must be a name or package.module:Class, not {scheduling_policy!r}")
    given["policy"] = scheduling_policy
    config = replace(SchedulerConfig(), **{name: value for name, value in given.items() if value is not None})
    hot.check(config)
    return config


def chat_options(generation_config: str) -> ChatOptions:
    """Raises PagemillError."""
    if not isinstance(generation_config, str) or not generation_config:
        raise invalid("generation_config", f'must be "auto", "vllm" or a folder, not {generation_config!r}')
    return ChatOptions(generation_config=generation_config)


def settings(model: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig, chat: ChatOptions) -> Settings:
    """With nothing of a server in it."""
    return Settings(model, cache, scheduler, ServerConfig(), chat)


def check_each(name: str, given: object, kind: type, count: int) -> None:
    """Raises ValueError for what isn't a list of them, one a prompt."""
    if not isinstance(given, Sequence) or not all(isinstance(value, kind) for value in given):
        raise ValueError(f"{name} must be a list of {kind.__name__}, one a prompt, not {str(given)[:50]}")
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} entries for {count} prompts")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Raises PagemillError."""
    if value not in allowed:
        raise invalid(name, f"must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def invalid(name: str, message: str) -> PagemillError:
    return PagemillError(FailureReason.INVALID_CONFIGURATION, f"{name} {message}")


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise invalid(name, f"must be a whole number from {least} up, not {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(name, f"must be a number, not {value!r}")
    return value


def _size(name: str, value: int | str) -> int:
    try:
        return parse_size(str(value))
    except PagemillError as error:
        raise invalid(name, f"must be a size: {error.failure.message}") from None
