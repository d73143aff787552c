"""Pagemill on a cluster, as a user installs it: `helm install` of the chart, with the images that were just built.

Its namespace enforces Pod Security's `restricted`, as a careful cluster does. Called by conftest, the tests of the release,
cluster.py and demo_cluster.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from testbed.cluster import Cluster, CommandFailed
from testbed.images import REPOSITORY, Images
from testbed.ready import eventually

CHART = REPOSITORY / "charts" / "pagemill"
NAMESPACE = "pagemill-system"
RELEASE = "pagemill"
VERDICT = "Phase:"  # what the line of a test's outcome begins with
OPERATOR = "pagemill-operator"  # the chart's Deployment, ServiceAccount and Lease


def install(cluster: Cluster, images: Images, *values: str, chart: Path = CHART) -> None:
    """Install the operator and return when its pods run. `values` are further `--set`s."""
    restrict(cluster, NAMESPACE)
    _helm(cluster, "install", chart, images, values)


def upgrade(cluster: Cluster, images: Images, *values: str) -> None:
    """To this tree's chart and images."""
    _helm(cluster, "upgrade", CHART, images, values)


def uninstall(cluster: Cluster) -> None:
    """And wait for the operator's pods to go. Helm's own --wait would wait for the CRD, which it keeps."""
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    cluster.kubectl("wait", "pods", "--all", "--for=delete", "-n", NAMESPACE, "--timeout=120s")


def helm_test(cluster: Cluster) -> str:
    """All that `helm test` says of its verdict, once its pod has gone; CommandFailed where it has none.

    It says so before it takes the pod away, and 4.2.1 then waits all of --timeout for the end of a pod that has gone already
    (helm#32214): so long nobody waits here.
    """
    command = [cluster.helm_program, "test", RELEASE, "--namespace", NAMESPACE, "--timeout", "300s"]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    said = ""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            said += line
            if line.startswith(VERDICT):
                break
        else:
            raise CommandFailed(running.wait(), command, said, "it gave no verdict")
        left = ("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=pagemill-test", "-o", "name")
        eventually("the end of its pod", lambda: not cluster.kubectl(*left) or None)
        running.terminate()
    return said


def verdict(said: str) -> str:
    """Succeeded or Failed, of what `helm test` has said."""
    return said.rpartition(VERDICT)[2].split()[0]


def restrict(cluster: Cluster, namespace: str) -> None:
    """Make the namespace if need be, and have it refuse pods that are not `restricted`."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))


def _helm(cluster: Cluster, verb: str, chart: Path, images: Images, values: tuple[str, ...]) -> None:
    repository, _, tag = images.operator.rpartition(":")
    settings = {
        "operator.image.repository": repository,
        "operator.image.tag": tag,
        "server.image.cpu": images.server,
        "server.image.gpu": images.server,  # no GPU here: what matters is where the pod goes and what it asks for
    }
    sets = [f"{name}={value}" for name, value in settings.items()]
    flags = [part for value in (*sets, *values) for part in ("--set", value)]
    cluster.helm(verb, RELEASE, str(chart), "--namespace", NAMESPACE, "--wait", "--timeout", "300s", *flags)
