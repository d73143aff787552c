"""Runs buildah, with a storage of the testbed's own in the cache.

Owns the flags. `--isolation chroot` needs neither a daemon nor a runtime. Knows nothing of which images
there are. Called by images.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.cache import cluster_cache
from testbed.errors import TestbedError


def storage() -> Path:
    """buildah's layers."""
    return cluster_cache() / "buildah"


@dataclass(frozen=True)
class Mount:
    """A folder of this machine that a build may read."""

    host: Path
    container: str


def buildah(*arguments: str, log: Path | None = None) -> str:
    """Run buildah and return what it prints; on failure raise with the end of its output."""
    folders = ["--root", str(storage()), "--runroot", "/run/pagemill-testbed/buildah", "--storage-driver", "overlay"]
    command = ["nice", "buildah", *folders, *arguments]
    outcome = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if log:
        log.write_text(outcome.stdout)
    if outcome.returncode != 0:
        raise TestbedError(f"buildah {' '.join(arguments)}\n{outcome.stdout[-3000:]}")
    return outcome.stdout


def has_image(name: str) -> bool:
    """Whether the storage holds an image of this name."""
    listed = buildah("images", "--format", "{{.Name}}:{{.Tag}}")
    return name in listed.split()


def build_image(
    name: str,
    context: Path,
    *,
    dockerfile: Path | None = None,
    target: str = "",
    arguments: dict[str, str] | None = None,
    contexts: dict[str, Path] | None = None,
    mounts: tuple[Mount, ...] = (),
) -> None:
    """`buildah bud`; its output is kept in the cache as logs/NAME.log."""
    command = ["bud", "--isolation", "chroot", "--layers", "--pull-never", "--format", "oci", "--tag", name]
    command += ["--file", str(dockerfile or context / "Dockerfile")]
    if target:
        command += ["--target", target]
    for argument, value in (arguments or {}).items():
        command += ["--build-arg", f"{argument}={value}"]
    for stage, folder in (contexts or {}).items():
        command += ["--build-context", f"{stage}={folder}"]
    for mount in mounts:
        command += ["--volume", f"{mount.host}:{mount.container}:ro"]
    logs = cluster_cache() / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"{os.path.basename(name).replace(':', '-')}.log"
    buildah(*command, str(context), log=log)
