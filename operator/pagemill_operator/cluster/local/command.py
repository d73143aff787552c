"""A container's command and environment as they are run on this machine instead of in an image.

Pure: port and host become this replica's own, `pagemill` the one that runs, and the environment is the caller's with the
container's on top. The lame duck goes: it waits for a cluster's endpoints to spread, and the front port knows at once. Called by
`pod`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pagemill.endpoints import MODELS_ENV, TERMINATION_LOG_ENV
from pagemill_operator.cluster.local.pod_status import LOCAL_ADDRESS


class UnknownSecret(Exception):
    """An environment variable comes from a Secret or ConfigMap, which one machine does not have."""


def local_command(container: Mapping[str, Any], port: int) -> list[str]:
    """Command and args, with every `--port` and `--host` (both spellings) made this replica's; added where there are none."""
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    if argv[:1] == ["pagemill"]:
        argv[:1] = [sys.executable, "-m", "pagemill"]
    needed = {"--port": str(port), "--host": LOCAL_ADDRESS}
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
    return (
        environ
        | home
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
