"""Runs buildah, with a storage of the testbed's own in the cache, and cuts its images into OCI blobs.

Owns the flags. `--isolation chroot` needs neither a daemon nor a runtime. Knows nothing of which images
there are. Called by images.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.cache import cluster_cache
from testbed.errors import TestbedError


def storage() -> Path:
    """buildah's layers."""
    return cluster_cache() / "buildah"


def layout() -> Path:
    """An OCI layout with the blobs of every image that was pushed; equal blobs are written once."""
    return cluster_cache() / "layout"


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
    mounts: tuple[Mount, ...] = (),
) -> None:
    """`buildah bud`; its output is kept in the cache as logs/NAME.log."""
    command = ["bud", "--isolation", "chroot", "--layers", "--pull-never", "--format", "oci", "--tag", name]
    command += ["--file", str(dockerfile or context / "Dockerfile")]
    if target:
        command += ["--target", target]
    for argument, value in (arguments or {}).items():
        command += ["--build-arg", f"{argument}={value}"]
    for mount in mounts:
        command += ["--volume", f"{mount.host}:{mount.container}:ro"]
    logs = cluster_cache() / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"{os.path.basename(name).replace(':', '-')}.log"
    buildah(*command, str(context), log=log)


def push_image(name: str) -> str:
    """Write an image's blobs to the layout, uncompressed, and return its manifest's digest."""
    digest_file = layout().parent / "digest"
    # The layout's own index lists what was pushed by reference name; ours is the image's name.
    buildah("push", "--disable-compression", "--digestfile", str(digest_file), name, f"oci:{layout()}:{name}")
    return digest_file.read_text().strip()


def blobs_of(manifest: str) -> dict[str, Path]:
    """digest → file of everything an image needs: its manifest, configuration and layers."""
    files = {manifest: _blob(manifest)}
    content = json.loads(files[manifest].read_text())
    for part in [content["config"], *content["layers"]]:
        files[part["digest"]] = _blob(part["digest"])
    return files


def _blob(digest: str) -> Path:
    return layout() / "blobs" / digest.replace(":", "/")
