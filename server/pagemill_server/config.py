"""The server's settings in pieces, one frozen config a component, built once by `cli` from the flags.

A constructor takes its slice. What is derived from a model (block counts, lengths) lives in `EngineLimits`, made at the start;
nothing is written back.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What to load and how; filled from --model, --served-model-name, --dtype, --quantization, --device, --load-format, …"""

    model: str  # the reference as the user wrote it
    served_names: tuple[str, ...]  # the first is what responses say
    dtype: str = "auto"  # "auto" | "float32" | "bfloat16" | "float16"
    device: str = "auto"  # "auto" | "cpu" | "cuda"
    enforce_eager: bool = False  # no CUDA graphs: every step is launched kernel by kernel
    max_model_len: int | None = None  # tokens; None: the largest that the model allows and the memory holds
    seed: int = 0
    load_format: str = "auto"  # "auto" | "safetensors" | "gguf": refuse a model that lies in the other
    tensor_parallel_size: int = 1  # processes that share each layer
    task: str = "auto"  # "auto": what the model was made for | "generate" | "embed"
    quantization: str = "none"  # "none" | "int8": of the weights, at the load


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How messages become prompts and text becomes messages, and what a request gets that names no sampling; filled from
    --chat-template, --tool-call-parser, --reasoning-parser, --generation-config, --override-generation-config."""

    chat_template: str | None = None  # Jinja source in place of the model's own
    tool_call_parser: str = "auto"  # "auto": by the model's template | "none" | a name of `text/tool_formats`
    reasoning_parser: str = "auto"  # "auto": by the model's template | "none" | a name of `text/reasoning`
    generation_config: str = (
        "auto"  # "auto": the model's own generation_config.json | "vllm" or "none": OpenAI's defaults | a folder
    )
    generation_overrides: tuple[tuple[str, float], ...] = ()  # on top of it: temperature, top_p, …, max_new_tokens


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache; filled from --block-size, --kv-cache-memory-bytes, --gpu-memory-utilization,
    --[no-]enable-prefix-caching, --kv-offloading-size."""

    block_size: int = 16  # tokens a block
    memory_bytes: int | None = None  # None: derived (see memory_fit)
    gpu_memory_utilization: float = 0.9
    prefix_caching: bool = True  # equal prompt beginnings share their blocks
    offloading_bytes: int = 0  # of host memory for the second tier; 0: there is none


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one step may hold, who goes first and how many may wait; filled from the flags of the same names.

    All of it is hot: `EngineClient.configure` changes it on the running engine between two steps.
    """

    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step, prompts and outputs together
    policy: str = "fcfs"  # "fcfs" | "priority" | "fair" | "deadline" | "package.module:Class"
    aging_seconds: float = 30.0  # priority: waiting that is worth one level
    ttft_ms: float = 1000.0  # deadline: to the first token, for a request that brings no deadline
    weights: tuple[tuple[str, float], ...] = ()  # fair: a client's share; 1 for whom it doesn't name
    input_weight: float = 1.0  # fair: what a prompt token costs
    output_weight: float = 2.0  # fair: what an output token costs
    watermark: float = 0.01  # share of the blocks that an admission leaves free while others run
    bypass_seconds: float = 1.0  # how long smaller requests may pass a head of the queue whose blocks aren't free
    max_num_queued_reqs: int | None = None  # sequences that may wait; more are refused
    max_num_queued_tokens: int | None = None  # prompt tokens that may wait; more are refused

    @property
    def places(self) -> int:
        """Sequences that can run at once: each computes a token in every step, so no more than the budget has tokens."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where and how to answer; filled from --host, --port, --api-key, --api-key-file, --startup-timeout, --stall-timeout, the
    flags of a stop, of logs and traces, and those of management."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None  # YAML, or a folder with a file a key; read again when it changes
    log_content: bool = False  # prompts and outputs may stand in logs and traces
    otlp_traces_endpoint: str | None = None  # URL of an OpenTelemetry collector (OTLP over HTTP); None: no traces
    lame_duck_seconds: float = 0.0  # after SIGTERM: unready, new requests still served with `Connection: close`
    shutdown_timeout: float = 30.0  # seconds that running streams get to finish after that
    startup_timeout: float = 600.0  # the longest time without loading progress
    stall_timeout: float = (
        300.0  # /health turns 503 when work waits and nothing moved for so long: more than a step may take
    )
    management_port: int | None = None  # None: there is no management port
    management_token: str = field(
        default="", repr=False
    )  # what the management port asks for; never empty where there is a port


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Derived at the start from the model and the memory; what the front end validates requests against."""

    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # of the model's embedding, not len(tokenizer)
    num_blocks: int
    block_size: int  # tokens
    num_host_blocks: int = 0  # of the second tier
