"""The release before: its chart and the operator's image of its own code, from this repository's history.

An upgrade is only one if what was there before was really the former release. The image is built by the former Dockerfile
from the same wheels, and imported into a cluster that runs. Called by test_upgrade.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed.base_image import ensure_base_image
from testbed.buildah import Mount, build_image, buildah, has_image
from testbed.cache import cluster_cache, exclusive
from testbed.cluster import Cluster
from testbed.errors import NotPossibleHere
from testbed.images import REPOSITORY
from testbed.wheelhouse import ensure_wheelhouse

COMMIT = "3662f4e"  # the last one with a single operator


@dataclass(frozen=True)
class PreviousRelease:
    """A chart to install and the image that belongs to it."""

    chart: Path
    operator: str


def previous_release(folder: Path) -> PreviousRelease:
    """Its sources in `folder`, its image built. NotPossibleHere where the history does not go back that far."""
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", COMMIT], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    if archive.returncode:
        raise NotPossibleHere(f"commit {COMMIT} is not in this clone: git fetch --unshallow")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    name = f"localhost/pagemill-operator-previous:{COMMIT}"
    with exclusive("images"):
        if not has_image(name):
            build_image(
                name,
                folder,
                target="operator",
                arguments={
                    "BASE_IMAGE": ensure_base_image(),
                    "PIP_NO_INDEX": "1",
                    "PIP_FIND_LINKS": "/wheelhouse",
                },
                mounts=(Mount(ensure_wheelhouse(REPOSITORY), "/wheelhouse"),),
            )
    return PreviousRelease(folder / "charts" / "pagemill", name)


def load(cluster: Cluster, image: str) -> None:
    """Make an image of buildah's known to a cluster of ours that runs."""
    if not cluster.node:
        raise NotPossibleHere("an image can only be put into a cluster of our own")
    with tempfile.TemporaryDirectory(dir=cluster_cache()) as folder:
        archive = Path(folder) / "image.tar"
        buildah("push", image, f"oci-archive:{archive}:{image}")
        command = cluster.node.ctr("images", "import", "--local", "--snapshotter", "overlayfs", str(archive))
        done = subprocess.run(cluster.node.sandbox.enter(*command), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
