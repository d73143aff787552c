"""Flags: what they become, and that none is taken without effect."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError, parse_termination
from pagemill_server import cli
from pagemill_server.config import CacheConfig, ChatOptions, SchedulerConfig, ServerConfig
from pagemill_server.flags import make_parser


def test_the_defaults_are_those_of_the_configs() -> None:
    settings = cli.parse(["org/name"])
    assert (settings.model.model, settings.model.served_names) == ("org/name", ("org/name",))
    assert (settings.cache, settings.scheduler, settings.server) == (CacheConfig(), SchedulerConfig(), ServerConfig())
    assert settings.chat == ChatOptions()


def test_every_flag_arrives() -> None:
    argv = (
        "--model hf://org/name@main --host 0.0.0.0 --port 9000 --served-model-name a b --dtype float32 --device cpu "
        "--max-model-len 128 --seed 7 --block-size 16 --kv-cache-memory-bytes 80MiB --gpu-memory-utilization 0.5 "
        "--max-num-seqs 4 --max-num-batched-tokens 64 --scheduling-policy fcfs --api-key k1 k2 --api-key k3 "
        "--startup-timeout 5 --lame-duck-seconds 1.5 --shutdown-timeout 0 --no-enable-prefix-caching --kv-offloading-size 1.5 "
        "--load-format auto --tensor-parallel-size 2 --task embed"
    )
    settings = cli.parse(argv.split())
    assert settings.model.served_names == ("a", "b")
    assert (settings.model.dtype, settings.model.device) == ("float32", "cpu")
    assert (settings.model.max_model_len, settings.model.seed) == (128, 7)
    assert settings.model.tensor_parallel_size == 2
    assert settings.cache == CacheConfig(16, 80 << 20, 0.5, prefix_caching=False, offloading_bytes=3 << 29)
    assert settings.scheduler == SchedulerConfig(4, 64, "fcfs")
    assert settings.model.task == "embed"
    assert settings.server == ServerConfig(
        host="0.0.0.0",
        port=9000,
        api_keys=("k1", "k2", "k3"),
        lame_duck_seconds=1.5,
        shutdown_timeout=0.0,
        startup_timeout=5.0,
    )


def test_the_flags_of_prompts_answers_and_logs_arrive(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    settings = cli.parse(
        [
            *("a/b", "--chat-template", str(template), "--tool-call-parser", "none", "--enable-auto-tool-choice"),
            *("--reasoning-parser", "none", "--generation-config", "vllm"),
            *("--override-generation-config", '{"temperature": 0.5, "max_new_tokens": 100}'),
            *(
                "--api-key-file",
                "keys.yaml",
                "--log-content",
                "--otlp-traces-endpoint",
                "http://collector:4318/v1/traces",
            ),
        ]
    )
    assert settings.chat == ChatOptions(
        chat_template="{{ messages }}",
        tool_call_parser="none",
        reasoning_parser="none",
        generation_config="vllm",
        generation_overrides=(("temperature", 0.5), ("max_new_tokens", 100)),
    )
    assert settings.server == ServerConfig(
        api_key_file="keys.yaml", log_content=True, otlp_traces_endpoint="http://collector:4318/v1/traces"
    )


def test_a_block_has_sixteen_tokens_where_nobody_says() -> None:
    assert cli.parse(["a/b"]).cache.block_size == 16
    assert cli.parse(["a/b", "--block-size", "24"]).cache.block_size == 24


def test_a_prefix_cache_can_be_asked_for() -> None:
    assert cli.parse(["a/b", "--enable-prefix-caching"]).cache.prefix_caching


def test_the_schedulers_flags_arrive() -> None:
    argv = (
        "a/b --scheduling-policy fair --scheduling-aging-seconds 5 --scheduling-ttft-ms 250 --scheduling-weights key1=2 a=b=0.5 "
        "--scheduling-weights key1=3 --max-num-queued-reqs 10 --max-num-queued-tokens 2000"
    )
    expected = SchedulerConfig(
        policy="fair",
        aging_seconds=5.0,
        ttft_ms=250.0,
        weights=(("key1", 3.0), ("a=b", 0.5)),
        max_num_queued_reqs=10,
        max_num_queued_tokens=2000,
    )
    assert cli.parse(argv.split()).scheduler == expected


def test_the_management_port_and_its_token() -> None:
    server = cli.parse(["a/b", "--management-port", "0", "--management-token", "t", "--stall-timeout", "7.5"]).server
    assert (server.management_port, server.management_token, server.stall_timeout) == (0, "t", 7.5)
    from_environment = cli.parse(["a/b", "--management-port", "9"], {"PAGEMILL_MANAGEMENT_TOKEN": "secret\n"}).server
    assert (from_environment.management_port, from_environment.management_token) == (9, "secret")
    assert cli.parse(["a/b"], {"PAGEMILL_MANAGEMENT_TOKEN": "secret"}).server.management_port is None
    with pytest.raises(PagemillError, match="needs a token"):
        cli.parse(["a/b", "--management-port", "9"], {"PAGEMILL_MANAGEMENT_TOKEN": " "})


def test_a_hub_model_is_served_under_its_name() -> None:
    assert cli.parse(["hf://org/name@v1"]).model.served_names == ("org/name",)
    assert cli.parse(["/models/some"]).model.served_names == ("/models/some",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "name one model"),
        ("a/b --model a/c", "name one model"),
        ("a/b c/d", "unrecognized arguments: c/d"),
        ("a/b --no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("a/b --max-model", "unrecognized arguments: --max-model"),  # no abbreviations: they break when flags are added
        ("a/b --port 70000", "'70000' is not a whole number from 0 to 65535"),
        ("a/b --port x", "'x' is not a whole number"),
        ("a/b --max-num-seqs 0", "'0' is not a whole number from 1 up"),
        ("a/b --max-model-len -5", "not a whole number from 1 up"),
        ("a/b --seed 1.5", "'1.5' is not a whole number"),
        ("a/b --gpu-memory-utilization 0", "'0' is not a share"),
        ("a/b --gpu-memory-utilization 1.1", "'1.1' is not a share"),
        ("a/b --gpu-memory-utilization nan", "'nan' is not a share"),
        ("a/b --kv-cache-memory-bytes 2XB", "'2XB' is not a size"),
        ("a/b --shutdown-timeout inf", "'inf' is not a number of seconds"),
        ("a/b --lame-duck-seconds -1", "not a number of seconds from 0 up"),
        ("a/b --startup-timeout 0", "not a number of seconds from 1 up"),
        ("a/b --dtype int8", "invalid choice: 'int8'"),
        ("a/b --scheduling-policy lifo", 'There is no scheduling policy "lifo"'),
        ("a/b --load-format pt", "invalid choice: 'pt'"),
        ("a/b --api-key", "expected at least one argument"),
        ("a/b --tensor-parallel-size 0", "'0' is not a whole number from 1 to 64"),
        ("a/b --quantization awq", "invalid choice: 'awq' (choose from"),
        ("a/b --kv-offloading-size -1", "'-1' is not a number of GiB from 0"),
        ("a/b --kv-offloading-size 4GiB", "'4GiB' is not a number of GiB from 0"),
        ("a/b --kv-offloading-size inf", "'inf' is not a number of GiB from 0"),
        ("a/b --max-num-queued-reqs 0", "'0' is not a whole number from 1 up"),
        ("a/b --max-num-queued-tokens x", "'x' is not a whole number from 1 up"),
        ("a/b --max-num-seqs 99999999999", "max_num_seqs must be a whole number from 1 to 2147483647"),
        ("a/b --scheduling-policy nowhere_of_test:P", "there is no module nowhere_of_test"),
        ("a/b --scheduling-aging-seconds 0", "'0' is not a number above 0"),
        ("a/b --scheduling-ttft-ms inf", "'inf' is not a number above 0"),
        ("a/b --scheduling-weights key1", "'key1' is not CLIENT=WEIGHT"),
        ("a/b --scheduling-weights =2", "'=2' is not CLIENT=WEIGHT"),
        ("a/b --scheduling-weights a=-1", "'-1' is not a number above 0"),
        ("a/b --stall-timeout 0", "not a number of seconds from 1 up"),
        ("a/b --management-port 9001", "--management-port needs a token: set PAGEMILL_MANAGEMENT_TOKEN"),
        ("a/b --task score", "invalid choice: 'score'"),
        ("a/b --chat-template /nowhere/x.jinja", "--chat-template: /nowhere/x.jinja can't be read"),
        ("a/b --override-generation-config {", "'{' is not JSON"),
        ("a/b --override-generation-config [1]", "'[1]' is not a JSON object"),
        ('a/b --override-generation-config {"heat":1}', "'heat' is none of temperature"),
        ('a/b --override-generation-config {"top_p":"1"}', "top_p must be a number, not '1'"),
        (
            'a/b --override-generation-config {"top_p":0}',
            "--override-generation-config: top_p must be a number above 0",
        ),
        ('a/b --override-generation-config {"temperature":NaN}', "temperature must be a number from 0 to 2"),
        ('a/b --override-generation-config {"max_new_tokens":0}', "max_new_tokens must be a whole number from 1"),
        ("a/b --port 9001 --management-port 9001 --management-token t", "--management-port and --port are both 9001"),
    ],
)
def test_what_cannot_be(argv: str, message: str) -> None:
    with pytest.raises(PagemillError) as error:
        cli.parse(argv.split())
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert message in error.value.failure.message


def test_an_empty_name_is_refused() -> None:
    for argv in (["a/b", "--served-model-name", ""], ["a/b", "--api-key", " "], ["a/b", "--host", ""]):
        with pytest.raises(PagemillError, match="it is empty"):
            cli.parse(argv)


@pytest.mark.parametrize("argv", ["a/b --tensor-parallel-size 1", "a/b --quantization none"])
def test_values_that_ask_for_nothing(argv: str) -> None:
    cli.parse(argv.split())


def test_a_mistake_is_one_line_a_reason_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination"
    monkeypatch.setenv("PAGEMILL_TERMINATION_LOG", str(log))
    assert cli.serve(["a/b", "--port", "x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pagemill serve: InvalidConfiguration: argument --port:")
    assert err.count("\n") == 1
    failure = parse_termination(log.read_text())
    assert failure is not None
    assert failure.reason is FailureReason.INVALID_CONFIGURATION


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.serve(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "--gpu-memory-utilization" in text
    assert "--quantization" in text
    assert "--speculative-config" not in text  # what this version lacks is not offered


def test_the_help_says_each_number_that_holds_without_a_flag() -> None:
    for action in make_parser()._actions:
        if isinstance(action.default, int | float) and action.help != argparse.SUPPRESS:
            assert "default" in (action.help or ""), action.option_strings
