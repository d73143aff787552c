"""Flags of vLLM's that this server doesn't have: those that ask for nothing are taken, the others say what to do instead.

So that a line from a tutorial runs as it is, or ends with an answer. None is in `--help`; docs/flags.md lists them all. Added to
the parser by `flags`; a flag that comes to mean something moves there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.failures import FailureReason, PagemillError

ANY = ("",)  # whatever comes with it is taken


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One of them, in all its spellings."""

    names: tuple[str, ...]
    why: str  # it is taken, or what to do instead
    takes: tuple[str, ...] = ()  # the values that ask for nothing; none: it is refused
    switch: bool = False  # it has no value


def _taken(names: str, why: str) -> VllmFlag:
    return VllmFlag(tuple(names.split()), why, ANY, switch=True)


def _refused(names: str, why: str) -> VllmFlag:
    return VllmFlag(tuple(names.split()), why, switch=True)


def _only(names: str, takes: str, why: str) -> VllmFlag:
    return VllmFlag(tuple(names.split()), why, tuple(takes.split()))


def _whatever(names: str, why: str) -> VllmFlag:
    return VllmFlag(tuple(names.split()), why, ANY)


def _none_of(names: str, why: str) -> VllmFlag:
    return VllmFlag(tuple(names.split()), why)


VLLM_FLAGS: Sequence[VllmFlag] = (
    _taken(
        "--trust-remote-code",
        "no code that comes with a model is ever run; a model that needs its own is refused by name",
    ),
    _whatever("--max-seq-len-to-capture", "CUDA graphs serve sequences of any length"),
    _taken("--enable-chunked-prefill", "prompts always come in chunks"),
    _refused("--no-enable-chunked-prefill", "prompts always come in chunks; --max-num-batched-tokens says how large"),
    _taken("--disable-log-requests --no-enable-log-requests", "prompts are never logged unless --log-content is given"),
    _refused("--enable-log-requests", "give --log-content, and prompts and outputs stand in the access log"),
    _none_of("--max-log-len", "prompts are not logged at all, or whole with --log-content; leave it out"),
    _taken("--disable-log-stats", "figures are never logged; /metrics has them"),
    _only(
        "--uvicorn-log-level", "info", "the log's level is one; a line of JSON a request can be filtered by its status"
    ),
    _refused(
        "--disable-uvicorn-access-log",
        "there is one line of JSON a request; drop those of the logger in your collector",
    ),
    _only(
        "--swap-space",
        "0",
        "requests that are put back compute anew; host memory for blocks is --kv-offloading-size GIB",
    ),
    _only(
        "--cpu-offload-gb", "0", "weights must fit the device; blocks can go to the host with --kv-offloading-size GIB"
    ),
    _none_of("--tokenizer", "the tokenizer is the model's: put its files into the model's folder"),
    _only("--tokenizer-mode", "auto", "the model's tokenizer.json, or its GGUF, says how it is read"),
    _none_of("--revision", "write it with the model: hf://org/name@REVISION"),
    _none_of("--tokenizer-revision --code-revision", "the model's revision is all: hf://org/name@REVISION"),
    _none_of("--download-dir", "set PAGEMILL_MODELS to the folder"),
    _only("--response-role", "assistant", "answers are the assistant's"),
    _only("--chat-template-content-format", "auto string", "content is text, and templates get it as a string"),
    _none_of("--root-path", "let the proxy in front cut its prefix off the path"),
    _none_of("--ssl-keyfile --ssl-certfile --ssl-ca-certs", "let the proxy in front speak TLS"),
    _none_of(
        "--allowed-origins --allowed-methods --allowed-headers",
        "browsers are not answered (no CORS): put a proxy in front",
    ),
    _refused("--allow-credentials", "browsers are not answered (no CORS): put a proxy in front"),
    _none_of("--middleware", "put what it does into a proxy in front"),
    _taken("--enable-request-id-headers", "every answer has X-Request-Id"),
    _taken("--enable-prompt-tokens-details", "usage always says cached_tokens"),
    _only(
        "--pipeline-parallel-size -pp", "1", "each layer is shared, none is given away whole: --tensor-parallel-size N"
    ),
    _only("--data-parallel-size -dp", "1", "start more replicas: spec.replicas of the LLMDeployment"),
    _only("--api-server-count", "1", "one process serves; start more replicas"),
    _only("--distributed-executor-backend", "mp", "workers are processes of this machine"),
    _taken("--disable-custom-all-reduce", "there is none"),
    _only("--num-scheduler-steps", "1", "each step is scheduled anew"),
    _only("--kv-cache-dtype", "auto", "the cache has the weights' type: --dtype"),
    _none_of("--num-gpu-blocks-override", "say the cache's size in bytes: --kv-cache-memory-bytes SIZE"),
    _only("--max-logprobs", "20", "at most 20 alternatives beside a token are given"),
    _only("--guided-decoding-backend", "auto guidance", "forms are always enforced, by llguidance"),
    _only("--runner", "auto generate", "say --task embed for a model that shall make embeddings"),
    _only("--convert", "auto none", "say --task embed for a model that shall make embeddings"),
    _refused("--enable-lora", "adapters are not served: merge yours into the weights"),
    _none_of("--lora-modules", "adapters are not served: merge yours into the weights"),
    _none_of("--speculative-config --speculative-model", "there is no speculative decoding: leave it out"),
    _none_of("--limit-mm-per-prompt", "models get text alone: leave it out"),
    _refused("--enable-expert-parallel", "experts are shared as all layers are: --tensor-parallel-size N"),
    _none_of("--config", "write the flags out"),
)


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    for flag in VLLM_FLAGS:
        nargs = 0 if flag.switch else None
        parser.add_argument(*flag.names, action=_Absent, flag=flag, nargs=nargs, default=None, help=argparse.SUPPRESS)


class _Absent(argparse.Action):
    """Takes or refuses it; nothing comes of it."""

    def __init__(self, *args: Any, flag: VllmFlag, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flag = flag

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        takes = self._flag.takes
        if takes != ANY and values not in takes:
            value = f" with {values!r}" if takes else ""
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION,
                f"{option} is not supported by this version{value}: {self._flag.why}",
            )
