"""The flags that the operator renders are the server's own, with the meaning that the spec gives them."""

from __future__ import annotations

from argparse import Namespace

import pytest

from pagemill_operator.fit_request import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.spec import OWNED_FLAGS
from pagemill_server.flags import make_parser
from pagemill_server.vllm_flags import VLLM_FLAGS
from tests.operator.golden_cases import CASES, EVERYTHING, SETTINGS

# What a deployment says in engine.extraArgs, where it must.
NO_FIELD = {
    *("--load-format", "--stall-timeout", "--enforce-eager"),
    *("--chat-template", "--tool-call-parser", "--enable-auto-tool-choice", "--no-enable-auto-tool-choice"),
    *("--reasoning-parser", "--generation-config", "--override-generation-config"),
    *("--log-content", "--otlp-traces-endpoint"),
}


def parsed(name: str) -> Namespace:
    """What the server's parser reads of a rendered pod."""
    (container,) = render(read(CASES[name]), SETTINGS)[-1]["spec"]["template"]["spec"]["containers"]
    program, command, *rest = container["command"]
    assert (program, command) == ("pagemill", "serve")
    return make_parser().parse_args([*rest, *container["args"]])


@pytest.mark.parametrize("name", CASES)
def test_the_servers_parser_takes_every_rendered_flag(name: str) -> None:
    flags = parsed(name)
    assert (flags.host, flags.port) == ("0.0.0.0", 8000)
    assert flags.model_tag
    assert flags.startup_timeout == read(CASES[name]).spec.startup.timeout_seconds


def test_every_flag_carries_its_field() -> None:
    flags, engine, rollout = parsed("everything"), EVERYTHING["engine"], EVERYTHING["rollout"]
    assert flags.model_tag == EVERYTHING["model"]
    assert flags.served_model_name == EVERYTHING["servedModelNames"]
    assert (flags.device, flags.dtype) == ("cuda", engine["dtype"])
    assert (flags.max_model_len, flags.gpu_memory_utilization) == (4096, 0.85)
    assert (flags.block_size, flags.max_num_seqs) == (engine["blockSize"], engine["maxNumSeqs"])
    assert (flags.max_num_batched_tokens, flags.seed) == (engine["maxNumBatchedTokens"], engine["seed"])
    assert (flags.lame_duck_seconds, flags.shutdown_timeout) == (
        rollout["lameDuckSeconds"],
        rollout["drainTimeoutSeconds"],
    )
    assert flags.load_format == "safetensors"
    (container,) = render(read(CASES["everything"]), SETTINGS)[-1]["spec"]["template"]["spec"]["containers"]
    assert flags.api_key_file in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_a_cpu_server_gets_its_cache_in_bytes() -> None:
    flags = parsed("cpu")
    assert flags.device == "cpu"
    assert flags.kv_cache_memory_bytes == 1024**3 // 2


def test_a_deployment_of_embeddings_says_so() -> None:
    assert (parsed("embeddings").task, parsed("cpu").task) == ("embed", "auto")


def test_a_model_that_a_client_cannot_name_is_served_under_the_deployments_name() -> None:
    assert parsed("model-in-a-claim").model_tag == "/model/llama/7b"
    assert parsed("model-in-a-claim").served_model_name == ["model-in-a-claim"]


def test_every_flag_of_a_field_is_refused_among_the_extra_ones() -> None:
    known = {option for action in make_parser()._actions for option in action.option_strings if option.startswith("--")}
    absent = {name for flag in VLLM_FLAGS for name in flag.names}
    assert known - absent - OWNED_FLAGS == {"--help", *NO_FIELD}, "a new flag of the server: is it a field of the spec?"


def test_plan_reckons_with_the_servers_defaults() -> None:
    flags = make_parser().parse_args([])
    assert (flags.max_num_seqs, flags.max_num_batched_tokens) == (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
