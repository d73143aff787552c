"""Manifests that the API server itself refuses, in words that say what to change. No operator is needed for that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import manifest

pytestmark = pytest.mark.cluster

SCALING = {"minReplicas": 1, "maxReplicas": 3}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"modell": "x"}, 'unknown field "spec.modell"'),
    "unknown field, deep": ({"engine": {"blocksize": 16}}, 'unknown field "spec.engine.blocksize"'),
    "wrong type": ({"maxModelLen": "4096"}, "spec.maxModelLen"),
    "no model": ({"model": None}, "spec.model"),
    "fraction above one": ({"gpuMemoryUtilization": 1.5}, "spec.gpuMemoryUtilization"),
    "negative replicas": ({"replicas": -1}, "spec.replicas"),
    "replicas beside autoscaling": (
        {"replicas": 1, "autoscaling": SCALING},
        "replicas and autoscaling exclude each other",
    ),
    "min above max": ({"autoscaling": {"minReplicas": 4, "maxReplicas": 3}}, "minReplicas is above maxReplicas"),
    "gpu on cpu": ({"accelerator": "cpu", "gpu": {"count": 1}}, "gpu belongs to accelerator: gpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_api_server_refuses(case: str, pagemill: Cluster, namespace: str) -> None:
    spec, says = REFUSED[case]
    refusal = pagemill.refused("apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest("bad", **spec)))
    assert says in refusal
    assert pagemill.kubectl("get", "llmd", "-n", namespace, "-o", "name") == ""


def test_a_name_that_its_children_could_not_have_is_refused(pagemill: Cluster, namespace: str) -> None:
    refusal = pagemill.refused("apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest("a" * 60)))
    assert "metadata.name" in refusal
