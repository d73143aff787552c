"""The preflight's Job: what its pod is, and what is said of a pod that does not start, ends without a word, or is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Key, Probe
from pagemill_operator.reconcile import reconcile
from tests.operator.golden_cases import EVERYTHING, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import running, unscheduled, waiting
from tests.operator.preflight_cluster import (
    LOOKING,
    NOW,
    arguments,
    ended,
    job,
    jobs,
    look,
    put_job_pod,
    run,
)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (waiting("ImagePullBackOff", "not found"), "ImagePullFailure"),
        (unscheduled("0/1 nodes are available: 1 Insufficient cpu."), "Unschedulable"),
        (waiting("CreateContainerConfigError", 'secret "hub" not found'), "ContainerConfigError"),
    ],
)
async def test_a_pod_that_does_not_start_is_told(status: Mapping[str, Any], reason: str) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, status)
    found = await look(cluster)
    assert found.trouble is not None
    assert found.trouble.reason == reason
    await run(cluster)
    assert len(jobs(cluster)) == 1, "Kubernetes goes on trying"


async def test_a_pod_that_is_refused_is_told_in_the_clusters_words() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    name = job(cluster)["metadata"]["name"]
    message = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0'
    cluster.events.append(
        {
            "type": "Warning",
            "reason": "FailedCreate",
            "message": message,
            "involvedObject": {"kind": "Job", "name": name},
            "metadata": {"name": "event"},
        }
    )
    found = await look(cluster)
    assert found.trouble is not None
    assert found.trouble.reason == "QuotaExceeded"
    assert "exceeded quota: small" in found.trouble.message


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (ended(2, ""), "no `pagemill preflight`"),
        (ended(137, "", reason="OOMKilled"), "more memory than it may"),
        (ended(0, ""), "exit code 0"),
        (ended(3, "some words\nof another program"), "some words of another program"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}, "low on disk"),
    ],
)
async def test_an_end_without_a_line_is_told(status: Mapping[str, Any], says: str) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, status)
    found = await look(cluster)
    assert found.trouble is not None
    assert says in found.trouble.message
    assert found.again == 30


@pytest.mark.parametrize(("kind", "seconds"), [("Failed", 0), ("Complete", 31)])
async def test_a_pod_that_is_gone_is_a_failure(kind: str, seconds: float) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    condition = {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "why"}
    job(cluster)["status"] = {"conditions": [condition]}
    found = await look(cluster, at=seconds)
    assert found.trouble is not None
    assert "its pod is gone" in found.trouble.message


@pytest.mark.parametrize(("kind", "answer", "seconds"), [("Complete", "True", 29), ("Failed", "False", 60)])
async def test_a_job_whose_pod_is_not_seen_yet_has_not_failed(kind: str, answer: str, seconds: float) -> None:
    """The cache may have the Job's end before the pod's."""
    cluster = MemoryCluster(stored())
    await run(cluster)
    condition = {"type": kind, "status": answer, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    job(cluster)["status"] = {"conditions": [condition]}
    found = await look(cluster, at=seconds)
    assert (found.passed, found.trouble) == (False, None)


async def test_a_download_says_how_far_it_is() -> None:
    cluster = MemoryCluster(stored(modelCache={"size": "10Gi"}))
    await run(cluster)
    assert "--fetch" in arguments(cluster)
    put_job_pod(cluster, running(False), Probe(503, {"phase": "Downloading", "percent": 47}))
    found = await look(cluster)
    assert "40%" in str(found.running)
    assert found.again == SETTINGS.look_again_seconds


@pytest.mark.parametrize("name", ["chat", "a" * 50, "a" * 37 + "-" + "b" * 12])
async def test_names_leave_room_for_the_pods(name: str) -> None:
    cluster = MemoryCluster(stored(name))
    await reconcile(cluster, Key("team", name), NOW, LOOKING)
    made = job(cluster)["metadata"]["name"]
    assert len(made) + len("-abcde") <= 63
    assert made == made.strip("-.")
    assert "--preflight" not in made


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
async def test_the_jobs_image_is_the_replicas_default(accelerator: str) -> None:
    cluster = MemoryCluster(stored(accelerator=accelerator))
    await run(cluster)
    (container,) = job(cluster)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == LOOKING.image(accelerator)


async def test_the_jobs_pod_is_a_replicas_with_less() -> None:
    cluster = MemoryCluster(stored(**EVERYTHING))
    await run(cluster)
    pod = job(cluster)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "example.com/gpu" not in str(container["resources"])
    assert {"HF_TOKEN", "PAGEMILL_MODELS"} <= {one["name"] for one in container["env"]}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (container["image"], container["imagePullPolicy"]) == (EVERYTHING["image"], EVERYTHING["imagePullPolicy"])
    assert pod["restartPolicy"] == "Never"
    assert job(cluster)["spec"]["backoffLimit"] == 0
    assert {"shm", "api-keys", "policy", "settings"}.isdisjoint(volume["name"] for volume in pod["volumes"])
    assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}


async def test_the_way_to_the_hub_is_the_replicas_own() -> None:
    """Endpoint, proxy, and an authority's certificate in a mounted ConfigMap: what a replica has by `pod`, the Job has."""
    authority = {"name": "authority", "configMap": {"name": "authority"}}
    mounted = {"name": "authority", "mountPath": "/etc/authority"}
    env = [
        {"name": "HF_ENDPOINT", "value": "https://hub.example"},
        {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
        {"name": "SSL_CERT_FILE", "value": "/etc/authority/ca.crt"},
    ]
    more = [{"secretRef": {"name": "more"}}]
    pod = {"env": env, "envFrom": more, "volumes": [authority], "volumeMounts": [mounted], "nodeSelector": {"a": "b"}}
    cluster = MemoryCluster(stored(pod=pod))
    await run(cluster)
    spec = job(cluster)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert [one for one in container["env"] if one in env] == env
    assert container["envFrom"] == more
    assert authority in spec["volumes"]
    assert mounted in container["volumeMounts"]
    assert spec["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(
    ("spec", "fetches", "mounted"),
    [
        ({"modelCache": {"existingClaim": "weights"}}, True, "persistentVolumeClaim"),
        ({"modelCache": {"size": "1Gi", "accessMode": "ReadWriteOncePod"}}, False, "emptyDir"),
        ({"model": "pvc://weights/llama"}, False, "emptyDir"),
        ({}, False, "emptyDir"),
    ],
)
async def test_it_fetches_into_a_cache_that_replicas_share(spec: dict[str, Any], fetches: bool, mounted: str) -> None:
    cluster = MemoryCluster(stored(**spec))
    await run(cluster)
    assert ("--fetch" in arguments(cluster)) == fetches
    volumes = {volume["name"]: volume for volume in job(cluster)["spec"]["template"]["spec"]["volumes"]}
    assert mounted in volumes["models"]
    assert ("model" in volumes) == spec.get("model", "").startswith("pvc://")
