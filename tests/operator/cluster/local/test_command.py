"""The container's command line and environment on this machine."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pagemill_operator.cluster.local.command import Management, UnknownSecret, local_command, local_environment


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["x", "--host", "0.0.0.0", "--port", "8000", "-v"], ["x", "--host", "127.0.0.1", "--port", "20001", "-v"]),
        (["x", "--host=0.0.0.0", "--port=8000"], ["x", "--host", "127.0.0.1", "--port", "20001"]),
        (["x"], ["x", "--port", "20001", "--host", "127.0.0.1"]),
        (
            ["x", "--port", "1", "--host", "a", "--port", "2"],
            ["x", "--port", "20001", "--host", "127.0.0.1", "--port", "20001"],
        ),
        (
            ["x", "--port", "1", "--host", "a", "--lame-duck-seconds", "5"],
            ["x", "--port", "20001", "--host", "127.0.0.1", "--lame-duck-seconds", "0"],
        ),
    ],
)
def test_port_and_host_are_this_replicas(argv: list[str], expected: list[str]) -> None:
    assert local_command({"command": argv[:1], "args": argv[1:]}, 20001) == expected


def test_pagemill_is_the_one_that_runs() -> None:
    command = local_command({"command": ["pagemill", "serve", "org/name"]}, 1)
    assert command[:5] == [sys.executable, "-m", "pagemill", "serve", "org/name"]


MANAGED = Management(20002, "the-token")


def test_a_server_of_ours_has_a_management_port_of_its_own_whatever_it_was_given() -> None:
    given = ["--management-port", "9000"]
    for arguments in ([], given):
        command = local_command({"command": ["pagemill", "serve", "org/name"], "args": arguments}, 20001, MANAGED)
        assert command[command.index("--management-port") + 1] == "20002"
        assert command.count("--management-port") == 1
        assert "the-token" not in " ".join(command), "other users of the machine can read it"
    assert "--management-port" not in local_command({"command": ["another"]}, 20001, MANAGED)


def test_the_token_is_in_the_environment_over_any_other() -> None:
    container = {"env": [{"name": "PAGEMILL_MANAGEMENT_TOKEN", "value": "theirs"}]}
    environ = local_environment(container, {}, models="/m", termination_log="/t", devices=(), management=MANAGED)
    assert environ["PAGEMILL_MANAGEMENT_TOKEN"] == "the-token"


def environment(container: dict[str, Any], **caller: str) -> dict[str, str]:
    return local_environment(container, caller, models="/m", termination_log="/t", devices=("1", "3"))


def test_the_containers_variables_lie_over_the_callers_and_the_machines_over_both() -> None:
    rendered = {
        "PAGEMILL_MODELS": "/models-cache:/models",
        "PAGEMILL_TERMINATION_LOG": "/dev/termination-log",
        "HOME": "/tmp",
        "COLOR": "red",
    }
    container = {"env": [{"name": name, "value": value} for name, value in rendered.items()]}
    environ = environment(container, HOME="/home/me", COLOR="blue", SHAPE="round")
    assert environ == {
        "PAGEMILL_MODELS": "/m",
        "PAGEMILL_TERMINATION_LOG": "/t",
        "HOME": "/home/me",
        "COLOR": "red",
        "SHAPE": "round",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "PYTHONUNBUFFERED": "1",
    }


def secret(**more: Any) -> dict[str, Any]:
    return {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", **more}}}]}


def test_a_secrets_variable_is_taken_from_the_caller() -> None:
    assert environment(secret(), HF_TOKEN="hf_x")["HF_TOKEN"] == "hf_x"
    assert "HF_TOKEN" not in environment(secret(optional=True))


@pytest.mark.parametrize("container", [secret(), {"envFrom": [{"secretRef": {"name": "all"}}]}])
def test_a_secret_that_is_not_there_is_said(container: dict[str, Any]) -> None:
    with pytest.raises(UnknownSecret, match="none on one machine"):
        environment(container)
