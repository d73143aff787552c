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
    "a CPU's cache on a GPU": ({"accelerator": "gpu"}, "engine.kvCacheGiB is for accelerator: cpu"),
    "two claims": ({"modelCache": {"existingClaim": "a", "size": "1Gi"}}, "exactly one of existingClaim and size"),
    "no claim": ({"modelCache": {"retain": True}}, "exactly one of existingClaim and size"),
    "another's claim": (
        {"modelCache": {"existingClaim": "a", "storageClassName": "fast"}},
        "storageClassName, accessMode and retain belong to size",
    ),
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


def test_what_a_claim_cannot_change_is_refused_and_the_rest_is_not(pagemill: Cluster, namespace: str) -> None:
    cache = {"size": "1Gi", "accessMode": "ReadWriteOnce"}
    pagemill.apply(manifest("cached", suspend=True, modelCache=cache), namespace)
    for name, value in (("size", "2Gi"), ("accessMode", "ReadWriteMany"), ("storageClassName", "fast")):
        changed = manifest("cached", suspend=True, modelCache={**cache, name: value})
        refusal = pagemill.refused("apply", "-n", namespace, "-f", "-", stdin=json.dumps(changed))
        assert f"modelCache.{name} can't change: remove modelCache, then set it anew" in refusal
    pagemill.apply(manifest("cached", suspend=True, modelCache={**cache, "retain": True}), namespace)
    removed = [{"op": "remove", "path": "/spec/modelCache"}]
    pagemill.kubectl("patch", "llmd", "cached", "-n", namespace, "--type=json", "-p", json.dumps(removed))
    pagemill.apply(manifest("cached", suspend=True, modelCache={**cache, "size": "2Gi"}), namespace)


def test_external_scaling_goes_beside_replicas(pagemill: Cluster, namespace: str) -> None:
    pagemill.apply(manifest("scaled", replicas=0, autoscaling={"maxReplicas": 3, "engine": "External"}), namespace)
