"""What may evict a replica, by the real eviction API: one of several at a time, and the only one, or a node's drain would hang."""

from __future__ import annotations

import json

import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny"


def evict(cluster: Cluster, namespace: str, pod: str) -> str:
    """What the API server says: empty when it has evicted the pod."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    try:
        return cluster.refused("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    except AssertionError:
        return ""


def names(deployed: Deployed) -> list[str]:
    return [pod["metadata"]["name"] for pod in deployed.staying()]


def test_one_of_two_may_go_and_then_the_other_may_not(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(pagemill, namespace, "pair", model=MODEL, maxModelLen=None, replicas=2)
    deployed.await_condition("Ready", "True", seconds=600)

    def allows_one() -> bool | None:
        budget = pagemill.get("poddisruptionbudget", "pair", "-n", namespace)
        return budget["status"].get("disruptionsAllowed") == 1 or None

    eventually("a budget for one", allows_one)
    first, second = names(deployed)
    assert evict(pagemill, namespace, first) == ""
    assert "would violate the pod's disruption budget" in evict(pagemill, namespace, second)
    deployed.await_condition("Ready", "True", seconds=600)


def test_the_only_one_may_go(pagemill: Cluster, namespace: str) -> None:
    """karpenter#2985, aws/karpenter-provider-aws#5232."""
    deployed = deploy(pagemill, namespace, "single", model=MODEL, maxModelLen=None)
    deployed.await_condition("Ready", "True", seconds=600)
    (only,) = names(deployed)
    assert pagemill.kubectl("get", "poddisruptionbudgets", "-n", namespace, "-o", "name") == ""
    assert evict(pagemill, namespace, only) == ""


def test_one_that_can_not_start_holds_up_no_drain(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(
        pagemill, namespace, "broken", model=MODEL, maxModelLen=None, replicas=2, image="localhost/nothing:1"
    )
    deployed.await_condition("Ready", "False", "ImagePullFailure")
    for pod in names(deployed):
        assert evict(pagemill, namespace, pod) == ""
