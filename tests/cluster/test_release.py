"""The chart's life: an uninstall leaves users' objects alone and deletable, and a release can be held to one namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.images import Images
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR, RELEASE, install

pytestmark = pytest.mark.cluster


@pytest.fixture
def uninstalled(pagemill: Cluster, images: Images) -> Iterator[Cluster]:
    """The cluster without the operator, for one test."""
    uninstall(pagemill)
    yield pagemill
    uninstall(pagemill)
    install(pagemill, images)


def uninstall(cluster: Cluster) -> None:
    """And wait for the operator's pod to go. Helm's own --wait would wait for the CRD, which it keeps."""
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    cluster.kubectl("wait", "pods", "--all", "--for=delete", "-n", NAMESPACE, "--timeout=60s")


def test_without_the_operator_deployments_stay_and_can_be_deleted(
    pagemill: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    left = deploy(pagemill, namespace, "left")
    left.await_condition("Ready", "True")
    request.getfixturevalue("uninstalled")
    assert left.get()["spec"]["model"]
    assert left.pods()[0]["status"]["phase"] == "Running"
    pagemill.kubectl("delete", "llmd", "left", "-n", namespace, "--timeout=10s")
    eventually("the end of its pods", lambda: not left.pods() or None, seconds=60)


def test_a_release_for_one_namespace_serves_that_and_no_other(
    uninstalled: Cluster, images: Images, namespace: str
) -> None:
    install(uninstalled, images, f"watchNamespaces={{{namespace}}}")
    mine = deploy(uninstalled, namespace, "mine")
    uninstalled.kubectl("create", "namespace", "elsewhere")
    other = deploy(uninstalled, "elsewhere", "other")
    mine.await_condition("Ready", "True")
    assert "status" not in other.get()
    as_operator = ("get", "pods", "--as", f"system:serviceaccount:{NAMESPACE}:{OPERATOR}", "-n")
    uninstalled.kubectl(*as_operator, namespace)
    assert "forbidden" in uninstalled.refused(*as_operator, "elsewhere")
    uninstalled.kubectl("delete", "namespace", "elsewhere", "--wait=false")
