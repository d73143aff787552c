"""A scheduling policy of the user's own, brought by a ConfigMap: imported by the server, and named where it is missing."""

from __future__ import annotations

import json

import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.images import REPOSITORY

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny"
MODULE = REPOSITORY / "examples" / "shortest_first.py"
SHOW = """
import os, urllib.request
headers = {"Authorization": "Bearer " + os.environ["PAGEMILL_MANAGEMENT_TOKEN"]}
request = urllib.request.Request("http://127.0.0.1:8001/config", headers=headers)
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""


def mine(cluster: Cluster, namespace: str, name: str) -> Deployed:
    return deploy(
        cluster,
        namespace,
        name,
        model=MODEL,
        maxModelLen=None,
        schedulingPolicy="shortest_first:ShortestFirst",
        scheduling={"policyConfigMap": "policies"},
    )


def test_the_class_is_the_one_in_force(pagemill: Cluster, namespace: str) -> None:
    pagemill.kubectl("create", "configmap", "policies", "-n", namespace, f"--from-file={MODULE}")
    deployed = mine(pagemill, namespace, "own")
    deployed.await_condition("Ready", "True", seconds=600)
    (pod,) = deployed.pods()
    said = json.loads(pagemill.kubectl("exec", pod["metadata"]["name"], "-n", namespace, "--", "python", "-c", SHOW))
    assert "shortest_first:ShortestFirst" in json.dumps(said)
    (container,) = pod["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "policy"]
    assert mount["readOnly"] is True


def test_a_config_map_that_is_missing_is_named_and_coming_is_enough(pagemill: Cluster, namespace: str) -> None:
    deployed = mine(pagemill, namespace, "own")
    told = deployed.await_condition("Ready", "False", "ContainerConfigError")
    assert "policies" in told["message"]
    pagemill.kubectl("create", "configmap", "policies", "-n", namespace, f"--from-file={MODULE}")
    deployed.await_condition("Ready", "True", seconds=600)  # the kubelet tries again after a while of its own
