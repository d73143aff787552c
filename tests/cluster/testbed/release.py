"""Pagemill on a cluster, as a user installs it: `helm install` of the chart, with the images that were just built.

Called by conftest, cluster.py and demo_cluster.py.
"""

from __future__ import annotations

from testbed.cluster import Cluster
from testbed.images import REPOSITORY, Images

CHART = REPOSITORY / "charts" / "pagemill"
NAMESPACE = "pagemill-system"
RELEASE = "pagemill"
OPERATOR = "pagemill-operator"  # the chart's Deployment and ServiceAccount


def install(cluster: Cluster, images: Images, *values: str) -> None:
    """Install the operator and return when its pod runs. `values` are further `--set`s."""
    repository, _, tag = images.operator.rpartition(":")
    settings = {
        "operator.image.repository": repository,
        "operator.image.tag": tag,
        "server.image.cpu": images.server,
        "server.image.gpu": images.server,  # no GPU here: what matters is where the pod goes and what it asks for
    }
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    extra = [part for value in values for part in ("--set", value)]
    cluster.helm(
        "install",
        RELEASE,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--wait",
        "--timeout",
        "120s",
        *sets,
        *extra,
    )
