"""One real cluster for the whole session, and Pagemill on it as a user installs it.

Where a cluster can't be had, the tests skip with the line that would run them. `PAGEMILL_TEST_KUBECONFIG` names one
that exists; it is then used, with the images of PAGEMILL_TEST_SERVER_IMAGE and PAGEMILL_TEST_OPERATOR_IMAGE.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `testbed` is no package that is installed

from testbed.cluster import Cluster, prepare, up, use_existing
from testbed.errors import NotPossibleHere
from testbed.images import Images, ensure_images
from testbed.ready import eventually
from testbed.release import install

_numbers = itertools.count(1)
# Whose programs take minutes to build, the first time: beside all the others (`cluster.py ahead`), if they come last.
LAST = ("test_argocd.py", "test_keda.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name in LAST)


@pytest.fixture(scope="session")
def images(pytestconfig: pytest.Config) -> Images:
    if os.environ.get("PAGEMILL_TEST_KUBECONFIG"):
        return Images(named("PAGEMILL_TEST_SERVER_IMAGE"), named("PAGEMILL_TEST_OPERATOR_IMAGE"))
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # a build of minutes must be seen
        print(flush=True)
        try:
            return ensure_images(prepare())
        except NotPossibleHere as reason:
            pytest.skip(str(reason))


def named(variable: str) -> str:
    """What goes with an existing cluster: an image that its nodes can pull."""
    if not (value := os.environ.get(variable)):
        pytest.fail(f"PAGEMILL_TEST_KUBECONFIG is set, {variable} is not: name an image that the cluster can pull")
    return value


@pytest.fixture(scope="session")
def cluster(images: Images, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster with nothing on it."""
    existing = os.environ.get("PAGEMILL_TEST_KUBECONFIG")
    if existing:
        yield use_existing(Path(existing))
        return
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        started = up(images.all(), kept=False)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def pagemill(cluster: Cluster, images: Images) -> Cluster:
    """The cluster with the operator installed by the chart."""
    install(cluster, images)
    return cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test."""
    name = f"test-{next(_numbers)}"
    cluster.kubectl("create", "namespace", name)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually("its account", lambda: cluster.read(account))  # without it no pod is taken, and no token is made
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
