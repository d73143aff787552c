"""The server's settings in pieces, one frozen config a component, built once by `cli` from the flags.

A constructor takes its slice. What is derived from a model (block counts, lengths) lives in `EngineLimits`, made at the start;
nothing is written back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What to load and how; filled from --model, --served-model-name, --dtype, --device, --load-format, --max-model-len."""

    model: str  # the reference as the user wrote it
    served_names: tuple[str, ...]  # the first is what responses say
    dtype: str = "auto"  # "auto" | "float32" | "bfloat16" | "float16"
    device: str = "auto"  # "auto" | "cpu" | "cuda"
    max_model_len: int | None = None  # tokens; None: the largest that the model allows and the memory holds
    seed: int = 0
    load_format: str = "auto"  # "auto" | "safetensors" | "gguf": refuse a model that lies in the other


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache; filled from --block-size, --kv-cache-memory-bytes, --gpu-memory-utilization."""

    block_size: int = 32  # tokens a block
    memory_bytes: int | None = None  # None: derived (see memory_fit)
    gpu_memory_utilization: float = 0.9


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one step may hold; filled from the flags of the same names."""

    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step, prompts and outputs together
    policy: str = "fcfs"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where and how to answer; filled from --host, --port, --api-key, --startup-timeout and the flags of a stop."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    lame_duck_seconds: float = 0.0  # after SIGTERM: unready, new requests still served with `Connection: close`
    shutdown_timeout: float = 30.0  # seconds that running streams get to finish after that
    startup_timeout: float = 600.0  # the longest time without loading progress


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Derived at the start from the model and the memory; what the front end validates requests against."""

    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # of the model's embedding, not len(tokenizer)
    num_blocks: int
    block_size: int  # tokens
