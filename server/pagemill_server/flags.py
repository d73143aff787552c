"""Every flag of `pagemill serve`, in the groups of `config`: its name, what it takes, its default and its line of help.

Flags are named as vLLM's users know them; those of vLLM's that there aren't are in `vllm_flags`. Used by `cli`, which makes configs
of them, and by `flag_reference`.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from pagemill import endpoints
from pagemill.endpoints import MANAGEMENT_TOKEN_ENV
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import DEFAULT_BLOCK_SIZE
from pagemill.weight_storage import QUANTIZATIONS
from pagemill_server import flag_values as values
from pagemill_server.config import CacheConfig, ChatOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine import policies
from pagemill_server.text.names import REASONING_PARSERS, TOOL_CALL_PARSERS
from pagemill_server.vllm_flags import add_vllm_flags

_Group = argparse._ArgumentGroup
_MOST_RANKS = 64  # GPUs of one pod
_CACHE, _SCHEDULER, _SERVER, _CHAT = CacheConfig(), SchedulerConfig(), ServerConfig(), ChatOptions()  # the defaults


def make_parser() -> argparse.ArgumentParser:
    """Every flag, in the groups of `config`."""
    parser = _Parser(
        prog="pagemill serve", allow_abbrev=False, description="Serve one model over an OpenAI-compatible API."
    )
    _model_flags(parser.add_argument_group("model"))
    _cache_flags(parser.add_argument_group("KV cache"))
    _scheduler_flags(parser.add_argument_group("scheduler"))
    _chat_flags(parser.add_argument_group("prompts and answers"))
    _server_flags(parser.add_argument_group("server"))
    _key_flags(parser.add_argument_group("keys, logs and traces"))
    add_vllm_flags(parser)
    return parser


def _model_flags(model: _Group) -> None:
    model.add_argument("model_tag", nargs="?", metavar="MODEL", help="org/name, or a path to a folder or a .gguf file")
    model.add_argument("--model", metavar="MODEL", help="the same, as a flag")
    model.add_argument(
        "--served-model-name",
        nargs="+",
        type=values.words,
        metavar="NAME",
        help="names that clients ask for; the first is in responses",
    )
    model.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of arithmetic and cache; auto is bfloat16 where the processor multiplies it fast, else float32, which keeps "
        "weights of 16 bits as they are; docs/models.md has the table, the log the choice and why",
    )
    model.add_argument(
        "--quantization",
        "-q",
        choices=QUANTIZATIONS,
        default="none",
        help="int8: weights are rounded to whole numbers with a scale for each output (default: %(default)s)",
    )
    model.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the model computes; auto takes a GPU that is there, and the CPU elsewhere",
    )
    model.add_argument(
        "--enforce-eager",
        action="store_true",
        help="on a GPU: no CUDA graphs, every step is launched kernel by kernel (default: decode steps are replayed)",
    )
    model.add_argument(
        "--max-model-len",
        type=values.whole(1),
        metavar="TOKENS",
        help="prompt and answer together (default: what the model allows and the memory holds)",
    )
    model.add_argument(
        "--seed", type=values.whole(0), default=0, help="of requests that bring none (default: %(default)g)"
    )
    model.add_argument(
        "--load-format",
        choices=("auto", "safetensors", "gguf"),
        default="auto",
        help="files are recognised by their content; anything else is refused",
    )
    model.add_argument(
        "--task",
        choices=("auto", "generate", "embed"),
        default="auto",
        help="auto is what the model was made for (default: %(default)s)",
    )
    model.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=values.whole(1, _MOST_RANKS),
        default=1,
        metavar="N",
        help="processes that share each layer, one a device (default: %(default)g)",
    )


def _cache_flags(cache: _Group) -> None:
    cache.add_argument(
        "--block-size",
        type=values.whole(1),
        default=DEFAULT_BLOCK_SIZE,
        metavar="TOKENS",
        help="tokens a block (default: %(default)g)",
    )
    cache.add_argument(
        "--kv-cache-memory-bytes",
        type=values.size,
        metavar="SIZE",
        help="bytes, or 80MiB, 2GiB (default on CPU: the lesser of 4 GiB and 40%% of the free memory)",
    )
    cache.add_argument(
        "--gpu-memory-utilization",
        type=values.share,
        default=_CACHE.gpu_memory_utilization,
        metavar="SHARE",
        help="of a GPU's memory, above 0 and at most 1 (default: %(default)g)",
    )
    cache.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=_CACHE.prefix_caching,
        help="prompts that begin alike share their blocks (on by default)",
    )
    cache.add_argument(
        "--kv-offloading-size",
        type=values.gib,
        default=_CACHE.offloading_bytes,
        metavar="GIB",
        help="GiB of host memory for blocks that the device has no room for (default: 0, no second tier)",
    )


def _scheduler_flags(scheduler: _Group) -> None:
    scheduler.add_argument(
        "--max-num-seqs",
        type=values.whole(1),
        default=_SCHEDULER.max_num_seqs,
        metavar="N",
        help="sequences in one step (default: %(default)g)",
    )
    scheduler.add_argument(
        "--max-num-batched-tokens",
        type=values.whole(1),
        default=_SCHEDULER.max_num_batched_tokens,
        metavar="TOKENS",
        help="tokens in one step (default: %(default)g)",
    )
    scheduler.add_argument(
        "--scheduling-policy",
        default=_SCHEDULER.policy,
        metavar="POLICY",
        help=f"{', '.join(policies.OURS)}, or a class of your own: package.module:Class (default: %(default)s)",
    )
    scheduler.add_argument(
        "--scheduling-aging-seconds",
        type=values.above_zero,
        default=_SCHEDULER.aging_seconds,
        metavar="S",
        help="priority: waiting that is worth one level (default: %(default)g)",
    )
    scheduler.add_argument(
        "--scheduling-ttft-ms",
        type=values.above_zero,
        default=_SCHEDULER.ttft_ms,
        metavar="MS",
        help="deadline: to the first token, for requests that bring no deadline (default: %(default)g)",
    )
    scheduler.add_argument(
        "--scheduling-weights",
        nargs="+",
        action="extend",
        type=values.weight,
        default=[],
        metavar="CLIENT=WEIGHT",
        help="fair: a client's share (default: 1); key1, key2 … are the API keys as they were given",
    )
    scheduler.add_argument(
        "--max-num-queued-reqs",
        type=values.whole(1),
        metavar="N",
        help="sequences that may wait; more are answered 429 (default: no bound)",
    )
    scheduler.add_argument(
        "--max-num-queued-tokens",
        type=values.whole(1),
        metavar="TOKENS",
        help="prompt tokens that may wait; more are answered 429 (default: no bound)",
    )
    scheduler.add_argument(
        "--settings-file",
        type=values.words,
        metavar="FILE",
        help="a JSON object of settings as /config names them, in place of the flags'; read once, at the start",
    )


def _server_flags(http: _Group) -> None:
    http.add_argument(
        "--host",
        default=_SERVER.host,
        type=values.words,
        help="address to listen on; 0.0.0.0 is every one of the machine (default: %(default)s)",
    )
    http.add_argument(
        "--port",
        type=values.whole(0, 65535),
        default=endpoints.SERVING_PORT,
        help="0: any free one, named in the log (default: %(default)d)",
    )
    http.add_argument(
        "--startup-timeout",
        type=values.seconds(1),
        default=_SERVER.startup_timeout,
        metavar="S",
        help="longest time without loading progress (default: %(default)g)",
    )
    http.add_argument(
        "--stall-timeout",
        type=values.seconds(1),
        default=_SERVER.stall_timeout,
        metavar="S",
        help="/health fails when work waits and nothing has moved for so long; more than one step may take (default: %(default)g)",
    )
    http.add_argument(
        "--lame-duck-seconds",
        type=values.seconds(0),
        default=_SERVER.lame_duck_seconds,
        metavar="S",
        help="after SIGTERM: not ready, but still serving (default: %(default)g)",
    )
    http.add_argument(
        "--shutdown-timeout",
        type=values.seconds(0),
        default=_SERVER.shutdown_timeout,
        metavar="S",
        help="what running answers then get to finish (default: %(default)g)",
    )
    http.add_argument(
        "--management-port",
        type=values.whole(0, 65535),
        metavar="PORT",
        help="a second port, for changes of the running server (default: there is none)",
    )
    http.add_argument(
        "--management-token",
        type=values.words,
        metavar="TOKEN",
        help=f"what the management port asks for; better in {MANAGEMENT_TOKEN_ENV}, where other users of the machine can't read it",
    )


def _chat_flags(chat: _Group) -> None:
    chat.add_argument(
        "--chat-template",
        type=values.words,
        metavar="FILE",
        help="Jinja, in place of the model's own chat template",
    )
    chat.add_argument(
        "--tool-call-parser",
        choices=("auto", "none", *TOOL_CALL_PARSERS),
        default=_CHAT.tool_call_parser,
        help="how the model writes tool calls; auto: by its chat template (default: %(default)s)",
    )
    chat.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="taken for vLLM's sake: tool_choice auto always works here (on by default)",
    )
    chat.add_argument(
        "--reasoning-parser",
        choices=("auto", "none", *REASONING_PARSERS),
        default=_CHAT.reasoning_parser,
        help="how the model marks its reasoning; auto: by its chat template (default: %(default)s)",
    )
    chat.add_argument(
        "--generation-config",
        type=values.words,
        default=_CHAT.generation_config,
        metavar="SOURCE",
        help="sampling of requests that name none: auto is the model's generation_config.json, vllm (or none) OpenAI's "
        "defaults, else a folder that holds such a file (default: %(default)s)",
    )
    chat.add_argument(
        "--override-generation-config",
        type=values.generation,
        default=(),
        metavar="JSON",
        help='on top of it, as {"temperature": 0.5}; max_new_tokens bounds what any request may ask for',
    )


def _key_flags(keys: _Group) -> None:
    keys.add_argument(
        "--api-key",
        nargs="+",
        action="extend",
        type=values.words,
        metavar="KEY",
        help="may be given again; clients then need one of them",
    )
    keys.add_argument(
        "--api-key-file",
        type=values.words,
        metavar="PATH",
        help="YAML, or a folder with a file a key, with a name and limits for each; read again when it changes",
    )
    keys.add_argument(
        "--log-content",
        action="store_true",
        help="prompts and outputs may stand in logs and traces (default: they never do)",
    )
    keys.add_argument(
        "--otlp-traces-endpoint",
        type=values.collector,
        metavar="URL",
        help="an OpenTelemetry collector, OTLP over HTTP: http://host:4318 (default: no traces)",
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as every other failure does: one line, and the termination log."""

    def error(self, message: str) -> NoReturn:
        raise invalid(f"{message} (see pagemill serve --help)")


def invalid(message: str) -> PagemillError:
    return PagemillError(FailureReason.INVALID_CONFIGURATION, message)
