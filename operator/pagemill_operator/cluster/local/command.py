"""A container's command and environment as they are run on this machine instead of in an image.

Pure: ports and host become this replica's own, `pagemill` the one that runs, with a management port for its page, and the
environment is the caller's with the container's on top. The lame duck goes: it waits for a cluster's endpoints to spread, and the
front port knows at once. Called by `pod`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.endpoints import MANAGEMENT_TOKEN_ENV, MODELS_ENV, TERMINATION_LOG_ENV
from pagemill_operator.cluster.local.pod_status import LOCAL_ADDRESS


class UnknownSecret(Exception):
    """An environment variable comes from a Secret or ConfigMap, which one machine does not have."""


@dataclass(frozen=True, slots=True)
class Management:
    """Where a replica is managed and shows its page, and what it asks for there."""

    port: int  # on 127.0.0.1
    token: str


def local_command(container: Mapping[str, Any], port: int, management: Management | None = None) -> list[str]:
    """Command and args, with every `--port` and `--host` (both spellings) made this replica's; added where there are none.

    So is the management port, of a server of ours.
    """
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    needed = {"--port": str(port), "--host": LOCAL_ADDRESS}
    if argv[:1] == ["pagemill"]:
        argv[:1] = [sys.executable, "-m", "pagemill"]
        if management is not None:
            needed["--management-port"] = str(management.port)
    rewritten = list(_rewrite(argv, {**needed, "--lame-duck-seconds": "0"}))
    missing = [part for flag, value in needed.items() if flag not in rewritten for part in (flag, value)]
    return rewritten + missing


def local_environment(
    container: Mapping[str, Any],
    caller: Mapping[str, str],
    *,
    models: str,
    termination_log: str,
    devices: Sequence[str],
    management: Management | None = None,
) -> dict[str, str]:
    """The caller's environment, then the container's, then what is this machine's own.

    A variable that a Secret would fill is taken from the caller under its own name; UnknownSecret when it is not there.
    """
    environ = dict(caller)
    for source in container.get("envFrom") or ():
        if not _optional(source):
            raise UnknownSecret("envFrom takes variables from a Secret or ConfigMap, and there are none on one machine")
    for variable in container.get("env") or ():
        if "valueFrom" not in variable:
            environ[variable["name"]] = variable.get("value", "")
        elif variable["name"] not in caller and not _optional(variable["valueFrom"]):
            raise UnknownSecret(
                f"{variable['name']} comes from a Secret, and there are none on one machine: "
                f"set {variable['name']} in the environment of `pagemill up`"
            )
    home = {"HOME": caller["HOME"]} if "HOME" in caller else {}
    token = {} if management is None else {MANAGEMENT_TOKEN_ENV: management.token}
    return (
        environ
        | home
        | token
        | {
            MODELS_ENV: models,
            TERMINATION_LOG_ENV: termination_log,
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
            "PYTHONUNBUFFERED": "1",
        }
    )


def _rewrite(argv: Sequence[str], flags: Mapping[str, str]) -> Iterator[str]:
    replaced: str | None = None  # the flag whose value is the next word
    for word in argv:
        flag, equals, _ = word.partition("=")
        if replaced is not None:
            yield flags[replaced]
            replaced = None
        elif word in flags:
            yield word
            replaced = word
        elif equals and flag in flags:
            yield from (flag, flags[flag])
        else:
            yield word


def _optional(source: Mapping[str, Any]) -> bool:
    return any(reference.get("optional", False) for reference in source.values() if isinstance(reference, Mapping))
