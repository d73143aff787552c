"""From the release before to this one by `helm upgrade`, with real images of both: CRD, rights and what runs are taken over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.errors import NotPossibleHere
from testbed.images import Images
from testbed.previous import PreviousRelease, load, previous_release
from testbed.release import NAMESPACE, OPERATOR, install, uninstall, upgrade

pytestmark = pytest.mark.cluster


@pytest.fixture
def previous(pagemill: Cluster, images: Images, tmp_path: Path) -> Iterator[PreviousRelease]:
    """The release before, installed in place of this one for one test."""
    try:
        release = previous_release(tmp_path)
        load(pagemill, release.operator)
    except NotPossibleHere as reason:
        pytest.skip(str(reason))
    uninstall(pagemill)
    install(pagemill, replace(images, operator=release.operator), chart=release.chart)
    yield release
    uninstall(pagemill)
    install(pagemill, images)


def test_an_upgrade_brings_two_operators_that_take_over_what_runs(
    previous: PreviousRelease, pagemill: Cluster, images: Images, namespace: str
) -> None:
    kept = deploy(pagemill, namespace, "kept", model="pagemill/tiny")
    kept.await_condition("Ready", "True", seconds=600)
    (before,) = kept.pods()
    upgrade(pagemill, images)
    operator = pagemill.get("deployment", OPERATOR, "-n", NAMESPACE)
    assert operator["status"]["readyReplicas"] == 2
    assert pagemill.get("lease", OPERATOR, "-n", NAMESPACE)["spec"]["holderIdentity"]
    pagemill.kubectl("scale", "llmd", "kept", "-n", namespace, "--replicas=2")
    kept.await_condition("Progressing", "False", "Settled", seconds=600)
    kept.await_condition("Ready", "True")
    staying = {pod["metadata"]["uid"]: pod for pod in kept.staying()}
    assert len(staying) == 2
    assert before["metadata"]["uid"] in staying, "the upgrade has replaced a replica"
    (container,) = staying[before["metadata"]["uid"]]["status"]["containerStatuses"]
    assert container["restartCount"] == 0
