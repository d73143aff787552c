"""The whole reconcile over a cluster in memory: asserts on the state of the world, and counts writes."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator.cluster.interface import ClusterError, Key, NameTaken
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.reconcile import reconcile
from pagemill_operator.settings import Settings
from tests.operator.golden_cases import EVERYTHING, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, failed, loading, running, unscheduled, waiting

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def run(
    cluster: MemoryCluster, passes: int = 1, settings: Settings = SETTINGS, now: datetime = NOW
) -> float | None:
    again = None
    for number in range(passes):
        again = await reconcile(cluster, KEY, now + timedelta(minutes=number), settings)
    return again


def written(cluster: MemoryCluster) -> list[str]:
    """All writes but events, which say the same."""
    return [write for write in cluster.writes if not write.startswith("event ")]


async def served(**spec: Any) -> MemoryCluster:
    """A cluster in which the deployment serves, with the list of writes empty."""
    cluster = MemoryCluster(stored(**spec))
    await run(cluster)
    cluster.observe_deployment()
    for number in range(cluster.child("Deployment")["spec"]["replicas"]):
        cluster.put_pod(f"chat-{number}", running(True), SERVING)
    await run(cluster)
    cluster.writes.clear()
    return cluster


async def test_a_new_deployment_gets_its_children_and_a_status() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    assert written(cluster) == [
        "apply ServiceAccount chat",
        "apply Service chat",
        "apply ConfigMap chat-settings",
        "apply Deployment chat",
        "status chat",
    ]
    assert cluster.condition(KEY, "Ready")["reason"] == "Creating"
    assert cluster.status(KEY)["observedGeneration"] == 1


@pytest.mark.parametrize("spec", [{}, EVERYTHING, {"suspend": True}], ids=["small", "everything", "suspended"])
async def test_a_hundred_passes_over_an_unchanged_world_write_nothing(spec: dict[str, Any]) -> None:
    cluster = await served(**spec)
    assert cluster.condition(KEY, "Ready")["status"] == "True"
    assert await run(cluster, passes=100) is None
    assert cluster.writes == []


@pytest.mark.parametrize(
    "status",
    [
        waiting("ImagePullBackOff", "not found"),
        waiting("CrashLoopBackOff", restarts=3),
        unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        running(False),
        failed(Failure(FailureReason.MODEL_NOT_FOUND, "not there")),
    ],
    ids=["image", "crash", "node", "starting", "failure"],
)
async def test_neither_does_a_world_that_stays_broken(status: dict[str, Any]) -> None:
    cluster = await served()
    cluster.put_pod("chat-0", status, loading(10))
    await run(cluster)
    cluster.writes.clear()
    await run(cluster, passes=100)
    assert cluster.writes == []


@pytest.mark.parametrize(
    "spec", [{"engine": {"quantization": "fp8"}}, {"replicas": "x"}], ids=["unsupported", "invalid"]
)
async def test_nor_one_whose_spec_is_refused(spec: dict[str, Any]) -> None:
    cluster = await served()
    cluster.edit(KEY, **spec)
    await run(cluster)
    assert written(cluster) == ["status chat"]
    cluster.writes.clear()
    await run(cluster, passes=100)
    assert cluster.writes == []


async def test_a_pods_trouble_is_told_within_one_pass() -> None:
    cluster = await served()
    cluster.put_pod("chat-0", waiting("ImagePullBackOff", "not found"))
    await run(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "ImagePullFailure"
    assert written(cluster) == ["status chat"]


async def test_a_pod_that_ended_for_good_is_not_asked_and_not_counted() -> None:
    cluster = await served()
    cluster.put_pod("chat-0", {"phase": "Failed", "reason": "Evicted", "podIP": "10.1.0.9"}, SERVING)
    await run(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "Evicted"
    assert cluster.status(KEY)["replicas"] == 0
    assert cluster.condition(KEY, "ModelAvailable")["status"] == "Unknown", "its address may be another pod's by now"


async def test_a_load_is_a_write_every_half_minute_at_most() -> None:
    cluster = await served()
    for percent in range(101):
        cluster.put_pod("chat-0", running(False), loading(percent))
        assert await run(cluster, now=NOW + timedelta(seconds=2 * percent)) == SETTINGS.look_again_seconds
    assert len(written(cluster)) == 7  # 200 seconds
    assert cluster.status(KEY)["loading"]["percent"] == 90


async def test_a_new_spec_is_not_ready_with_the_old_pods() -> None:
    cluster = await served()
    cluster.edit(KEY, maxModelLen=512)
    await run(cluster)
    assert cluster.condition(KEY, "Ready")["status"] == "False"
    assert cluster.status(KEY)["observedGeneration"] == 2
    assert cluster.condition(KEY, "Ready")["observedGeneration"] == 2
    await run(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "RollingOut"
    cluster.observe_deployment()
    cluster.put_pod("chat-0", running(True), SERVING)
    await run(cluster)
    assert cluster.condition(KEY, "Ready")["status"] == "True"


async def test_a_hand_edit_is_put_right() -> None:
    cluster = await served()
    cluster.child("Deployment")["spec"]["replicas"] = 9
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["replicas"] == 1


async def test_an_image_changed_by_hand_is_put_right_also_by_a_later_operator() -> None:
    cluster = await served()
    later = replace(SETTINGS, cpu_image="registry.example/next", version="next")
    cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/of-a-hand"
    await run(cluster, settings=later)
    assert cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.cpu_image
    cluster.edit(KEY, maxModelLen=512)
    await run(cluster, settings=later)
    assert cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] == later.cpu_image


async def test_an_operator_field_does_not_touch_the_pods() -> None:
    cluster = await served()
    template = cluster.child("Deployment")["spec"]["template"]
    cluster.edit(KEY, replicas=3, service={"port": 80}, rollout={"strategy": "Surge"})
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["template"] == template
    assert cluster.child("Deployment")["spec"]["replicas"] == 3


async def test_a_later_operator_restarts_no_pod_and_writes_nothing() -> None:
    cluster = await served()
    await run(
        cluster, 3, replace(SETTINGS, cpu_image="registry.example/next", image_pull_policy="Always", version="next")
    )
    assert cluster.writes == []


async def test_a_users_own_object_with_our_label_is_neither_taken_for_ours_nor_deleted() -> None:
    cluster = await served()
    own = copy.deepcopy(cluster.child("Service"))
    own["metadata"] |= {"name": "a-second-door", "labels": {DEPLOYMENT_LABEL: "chat"}}
    own["spec"]["ports"][0]["port"] = 9999
    cluster.objects = {("Service", "a-second-door"): own, **cluster.objects}
    await run(cluster)
    assert cluster.writes == []
    assert cluster.status(KEY)["url"] == "http://chat.team.svc:8000/v1"


async def test_a_claim_goes_with_the_field_and_a_retained_one_stays() -> None:
    cluster = await served(modelCache={"size": "1Gi"})
    cluster.edit(KEY, modelCache=None)
    await run(cluster)
    assert "delete PersistentVolumeClaim chat-models" in cluster.writes
    kept = await served(modelCache={"size": "1Gi", "retain": True})
    kept.edit(KEY, modelCache=None)
    await run(kept)
    assert ("PersistentVolumeClaim", "chat-models") in kept.objects


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        ({"replicas": "two"}, "InvalidSpec", 'spec.replicas: must be an integer, not "two"'),
        ({"newField": 1, "suspend": 3}, "InvalidSpec", "spec.newField: unknown field"),
        (
            {"engine": {"quantization": "fp8"}},
            "UnsupportedField",
            "spec.engine.quantization is not served by this release: set one of none, int8, or remove it",
        ),
    ],
)
async def test_a_refused_spec_is_told_and_leaves_what_runs_alone(spec: dict[str, Any], reason: str, says: str) -> None:
    cluster = await served()
    before = dict(cluster.objects)
    cluster.edit(KEY, maxModelLen=9, **spec)
    await run(cluster)
    assert cluster.objects == before
    assert cluster.condition(KEY, "Ready")["reason"] == reason
    assert says in cluster.condition(KEY, "Ready")["message"]
    assert cluster.condition(KEY, "Degraded")["status"] == "True"
    assert cluster.status(KEY)["ready"] == "1/1"
    assert cluster.status(KEY)["observedGeneration"] == 2


async def test_a_refused_first_spec_makes_nothing() -> None:
    cluster = MemoryCluster(stored(engine={"quantization": "fp8"}))
    await run(cluster)
    assert cluster.objects == {}
    assert cluster.condition(KEY, "Ready")["reason"] == "UnsupportedField"


async def test_what_the_cluster_refuses_is_quoted_and_the_rest_is_made() -> None:
    cluster = MemoryCluster(stored(modelCache={"size": "1Gi"}))
    cluster.refuse["PersistentVolumeClaim"] = ClusterError("exceeded quota: storage", refused=True)
    assert await run(cluster) == SETTINGS.refused_seconds, "no event tells that the quota has grown"
    ready = cluster.condition(KEY, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ApplyRefused")
    assert "PersistentVolumeClaim chat-models: exceeded quota: storage" in ready["message"]
    assert ("Deployment", "chat") in cluster.objects


@pytest.mark.parametrize("kind", ["ServiceAccount", "PersistentVolumeClaim"])
async def test_no_pod_uses_what_belongs_to_another(kind: str) -> None:
    cluster = MemoryCluster(stored(modelCache={"size": "1Gi"}))
    cluster.refuse[kind] = NameTaken()
    await run(cluster)
    assert "the operator has not made" in cluster.condition(KEY, "Ready")["message"]
    assert ("Deployment", "chat") not in cluster.objects
    cluster.refuse.clear()
    await run(cluster)
    assert ("Deployment", "chat") in cluster.objects


async def test_another_error_is_the_workers_to_repeat() -> None:
    cluster = MemoryCluster(stored())
    cluster.refuse["Service"] = ClusterError("connection refused")
    with pytest.raises(ClusterError, match="connection refused"):
        await run(cluster)


async def test_nothing_is_made_for_what_is_on_its_way_out_or_gone() -> None:
    leaving = stored()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster = MemoryCluster(leaving)
    assert await run(cluster) is None
    assert await reconcile(cluster, Key("team", "gone"), NOW, SETTINGS) is None
    assert (cluster.writes, cluster.objects) == ([], {})


async def test_the_resource_itself_is_never_written() -> None:
    cluster = await served()
    resource = cluster.manifests[KEY]
    assert {name: part for name, part in resource.items() if name != "status"} == stored()
