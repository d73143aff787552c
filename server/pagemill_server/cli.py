"""`pagemill serve MODEL …` and `python -m pagemill_server --model MODEL …`: flags to configs, and the exit code.

The flags themselves are in `flags`. The operator renders them; a contract test hands them to `parse`.

Exit codes: 0 stopped when asked to, 1 the model or the machine (the reason is on stderr and in $PAGEMILL_TERMINATION_LOG),
2 a flag or setting that can't be.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagemill import model_ref, model_source
from pagemill.endpoints import MANAGEMENT_TOKEN_ENV
from pagemill.failures import FailureReason, PagemillError, write_termination
from pagemill.keys import is_a_key
from pagemill_server import serve as server
from pagemill_server import settings_file
from pagemill_server.config import CacheConfig, ChatOptions, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine import hot
from pagemill_server.flags import invalid, make_parser
from pagemill_server.generation_config import checked_overrides
from pagemill_server.settings import Settings

EXIT_FAILED, EXIT_INVALID = 1, 2


def serve(argv: list[str]) -> int:
    """Run a server until it is told to stop; returns the exit code."""
    try:
        settings = parse(argv, os.environ)
        files = model_source.find(settings.model.model)
        return server.leave(server.run(settings, files))
    except PagemillError as error:
        failure = error.failure
        sys.stderr.write(f"pagemill serve: {failure.reason}: {failure.message}\n")
        write_termination(failure)
        return server.leave(EXIT_INVALID if failure.reason is FailureReason.INVALID_CONFIGURATION else EXIT_FAILED)


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The configs that the flags say. Raises PagemillError for flags that can't be, and for a model that isn't there."""
    flags = make_parser().parse_args(argv)
    named = flags.model_tag or flags.model
    if named is None or (flags.model_tag and flags.model):
        raise invalid("name one model: `pagemill serve MODEL` or --model MODEL")
    reference = model_ref.parse(named)
    default_name = reference.location if reference.kind == "hub" else named
    scheduler = _scheduler_config(flags)
    return Settings(
        ModelOptions(
            model=named,
            served_names=tuple(flags.served_model_name or (default_name,)),
            dtype=flags.dtype,
            quantization=flags.quantization,
            device=flags.device,
            enforce_eager=flags.enforce_eager,
            max_model_len=flags.max_model_len,
            seed=flags.seed,
            load_format=flags.load_format,
            tensor_parallel_size=flags.tensor_parallel_size,
            task=flags.task,
        ),
        _cache_config(flags),
        scheduler,
        _server_config(flags, environ),
        _chat_options(flags),
    )


def _cache_config(flags: argparse.Namespace) -> CacheConfig:
    return CacheConfig(
        block_size=flags.block_size,
        memory_bytes=flags.kv_cache_memory_bytes,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        prefix_caching=flags.enable_prefix_caching,
        offloading_bytes=flags.kv_offloading_size,
    )


def _scheduler_config(flags: argparse.Namespace) -> SchedulerConfig:
    config = SchedulerConfig(
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        policy=flags.scheduling_policy,
        aging_seconds=flags.scheduling_aging_seconds,
        ttft_ms=flags.scheduling_ttft_ms,
        weights=tuple(dict(flags.scheduling_weights).items()),
        max_num_queued_reqs=flags.max_num_queued_reqs,
        max_num_queued_tokens=flags.max_num_queued_tokens,
    )
    if flags.settings_file is not None:
        config = settings_file.applied(config, flags.settings_file)
    hot.check(config)  # what can't be, the policy too, is refused here in its own words
    return config


def _chat_options(flags: argparse.Namespace) -> ChatOptions:
    checked_overrides(flags.override_generation_config)  # here, where it is a mistake in a flag
    return ChatOptions(
        chat_template=_template(flags.chat_template),
        tool_call_parser=flags.tool_call_parser,
        reasoning_parser=flags.reasoning_parser,
        generation_config=flags.generation_config,
        generation_overrides=flags.override_generation_config,
    )


def _template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"--chat-template: {path} can't be read: {error}") from None


def _server_config(flags: argparse.Namespace, environ: Mapping[str, str]) -> ServerConfig:
    token = flags.management_token or environ.get(MANAGEMENT_TOKEN_ENV, "").strip()
    if flags.management_port is not None and not token:
        raise invalid(
            f"--management-port needs a token: set {MANAGEMENT_TOKEN_ENV} in the environment, or give --management-token"
        )
    if flags.management_port is not None and not is_a_key(token):
        raise invalid("--management-token must be one word of ASCII: a header has to carry it")
    if flags.management_port and flags.management_port == flags.port:
        raise invalid(f"--management-port and --port are both {flags.port}: give each its own")
    return ServerConfig(
        host=flags.host,
        port=flags.port,
        api_keys=tuple(flags.api_key or ()),
        api_key_file=flags.api_key_file,
        log_content=flags.log_content,
        otlp_traces_endpoint=flags.otlp_traces_endpoint,
        lame_duck_seconds=flags.lame_duck_seconds,
        shutdown_timeout=flags.shutdown_timeout,
        startup_timeout=flags.startup_timeout,
        stall_timeout=flags.stall_timeout,
        management_port=flags.management_port,
        management_token=token,
    )
