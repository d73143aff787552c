"""vLLM's other flags: each is taken where the table says so, and refused with the table's own words otherwise."""

from __future__ import annotations

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server import cli
from pagemill_server.flags import make_parser
from pagemill_server.vllm_flags import ANY, VLLM_FLAGS, VllmFlag

EACH = [pytest.param(flag, name, id=name) for flag in VLLM_FLAGS for name in flag.names]
PLAIN = cli.parse(["a/b"])


@pytest.mark.parametrize(("flag", "name"), EACH)
def test_what_asks_for_nothing_changes_nothing(flag: VllmFlag, name: str) -> None:
    for value in ("whatever",) if flag.takes == ANY else flag.takes:
        assert cli.parse([name, *([] if flag.switch else [value]), "a/b"]) == PLAIN


@pytest.mark.parametrize(("flag", "name"), EACH)
def test_the_others_say_what_to_do(flag: VllmFlag, name: str) -> None:
    if flag.takes == ANY:
        return
    with pytest.raises(PagemillError) as error:
        cli.parse(["a/b", name, *([] if flag.switch else ["something"])])
    failure = error.value.failure
    assert failure.reason is FailureReason.INVALID_CONFIGURATION
    assert failure.message.startswith(f"{name} is not supported by this version")
    assert failure.message.endswith(flag.why)


def test_what_to_do_names_flags_that_there_are() -> None:
    ours = {option for action in make_parser()._actions for option in action.option_strings}
    absent = {name for flag in VLLM_FLAGS for name in flag.names}
    for flag in VLLM_FLAGS:
        for word in flag.why.replace(";", " ").replace(",", " ").split():
            assert not word.startswith("--") or word in ours - absent, word


@pytest.mark.parametrize(
    "line",
    [
        "--model a/b --port 8000 --gpu-memory-utilization 0.9 --max-model-len 4096",
        "a/b --trust-remote-code --enforce-eager --disable-log-requests --dtype auto --tensor-parallel-size 1",
        "--model a/b --served-model-name b --host 0.0.0.0 --enable-chunked-prefill --max-num-batched-tokens 2048 --swap-space 0",
        "a/b --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --api-key token-abc123",
        "a/b --disable-log-stats --max-num-seqs 256 --seed 0 --generation-config vllm --kv-cache-dtype auto --block-size 16",
    ],
)
def test_lines_from_tutorials(line: str) -> None:
    cli.parse(line.split())
