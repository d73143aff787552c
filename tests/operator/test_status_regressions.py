"""What users of other operators have complained of in theirs, each thread by its name: ours does it right, within one reconcile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator.cluster.interface import Key
from pagemill_operator.reconcile import reconcile
from pagemill_operator.settings import Settings
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, end, ended, failed, loading, running, unscheduled, waiting

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(cpu_image="registry.example/server:cpu", preflight=False)


async def look(cluster: MemoryCluster) -> None:
    await reconcile(cluster, KEY, NOW, SETTINGS)


async def deployed(**spec: Any) -> MemoryCluster:
    cluster = MemoryCluster(stored(**spec))
    await look(cluster)
    cluster.observe_deployment()
    return cluster


async def served(**spec: Any) -> MemoryCluster:
    cluster = await deployed(**spec)
    cluster.put_pod("chat-0", running(True), SERVING)
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["status"] == "True"
    return cluster


def looping_init() -> dict[str, Any]:
    loop = {"name": "init", "ready": False, "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {**waiting("PodInitializing"), "initContainerStatuses": [{**loop, "lastState": {"terminated": end(1)}}]}


@pytest.mark.parametrize("status", [looping_init(), waiting("CrashLoopBackOff", restarts=3, last=end(1))])
async def test_kserve_1859_and_2037_not_ready_while_pods_crash(status: dict[str, Any]) -> None:
    """kserve#1859, kserve#2037: InferenceService Ready=True while its pods are (Init:)CrashLoopBackOff."""
    cluster = await served()
    cluster.put_pod("chat-0", status)
    await look(cluster)
    assert (cluster.condition(KEY, "Ready")["status"], cluster.status(KEY)["ready"]) == ("False", "0/1")
    assert cluster.condition(KEY, "Ready")["reason"] == "CrashLoopBackOff"


async def test_kserve_2260_out_of_memory_is_in_the_status() -> None:
    """kserve#2260: that a model was OOM-killed is only in its pod."""
    cluster = await served(resources={"limits": {"memory": "3Gi"}})
    cluster.put_pod("chat-0", ended(137, reason="OOMKilled"))
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "OOMKilled"
    assert "3Gi" in cluster.condition(KEY, "Degraded")["message"]
    assert cluster.condition(KEY, "MemoryFit")["status"] == "False"


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        (unscheduled('persistentvolumeclaim "weights" not found'), "ClaimPending", "claim weights does not exist"),
        (unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), "Unschedulable", "nvidia.com/gpu"),
        (looping_init(), "CrashLoopBackOff", "container init"),
        (waiting("CreateContainerConfigError", 'secret "hub" not found'), "ContainerConfigError", 'secret "hub"'),
    ],
)
async def test_kthena_1220_and_1503_what_a_pod_lacks(status: dict[str, Any], reason: str, says: str) -> None:
    """kthena#1220, kthena#1503: failures of pods and their init containers, missing claims and nodes don't reach the parent."""
    cluster = await deployed()
    cluster.put_pod("chat-0", status)
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == reason
    assert says in cluster.condition(KEY, "Ready")["message"]


async def test_llmkube_1767_another_model_is_another_generation() -> None:
    """LLMKube#1767: a change of the model's source is not acted on, observedGeneration is stale, the wrong model is served."""
    cluster = await served()
    cluster.edit(KEY, model="org/another")
    await look(cluster)
    arguments = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "org/another" in [*arguments["command"], *arguments["args"]]
    assert cluster.condition(KEY, "Ready")["status"] == "False", "the pod that answers has the former model"
    assert cluster.status(KEY)["observedGeneration"] == 2
    assert {one["observedGeneration"] for one in cluster.status(KEY)["conditions"]} == {2}
    cluster.observe_deployment()
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "RollingOut"
    cluster.put_pod("chat-0", running(True), SERVING)
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["status"] == "True"


async def test_kserve_5062_and_aibrix_782_a_slow_load_has_its_budget() -> None:
    """kserve#5062, aibrix#782: liveness kills a model that loads slowly. Here a startup probe covers the start, on a path that
    answers while loading moves, and a load that takes longer than any deadline of Kubernetes' is no trouble while it does."""
    cluster = await deployed(startup={"timeoutSeconds": 1800})
    container = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert startup["httpGet"]["path"] == liveness["httpGet"]["path"] == "/health"
    cluster.observe_deployment({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"})
    cluster.put_pod("chat-0", running(False), loading(35))
    await look(cluster)
    assert cluster.condition(KEY, "Ready")["reason"] == "Loading"
    assert cluster.condition(KEY, "Degraded")["status"] == "False"
    assert cluster.status(KEY)["loading"]["percent"] == 30


async def test_kserve_4400_and_others_a_gated_model_is_said_and_the_token_is_there() -> None:
    """kserve#4400, kserve#6260, LLMKube#1750, kubeai#155: HF_TOKEN does not reach who downloads; a gated model is in logs only."""
    cluster = await deployed(hfTokenSecretRef={"name": "hub", "key": "token"})
    environment = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    (token,) = [variable for variable in environment if variable["name"] == "HF_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    gated = Failure(FailureReason.GATED_MODEL, "org/name is gated: ask for access, then set hfTokenSecretRef")
    cluster.put_pod("chat-0", failed(gated))
    await look(cluster)
    for kind in ("Ready", "ModelAvailable"):
        assert cluster.condition(KEY, kind)["reason"] == "GatedModel"
        assert "ask for access" in cluster.condition(KEY, kind)["message"]


@pytest.mark.parametrize("restarts", [0, 5])
async def test_vllm_2418_and_others_a_cache_too_small_is_said_with_what_fits(restarts: int) -> None:
    """vllm#2418, vllm#10517, vllm#27508, DeepSeek-V2#83: max_model_len beyond the KV cache is a crash loop without a reason."""
    cluster = await deployed(maxModelLen=8192)
    small = Failure(FailureReason.KV_CACHE_TOO_SMALL, "8192 tokens do not fit", {"maxModelLen": 3072})
    loop = waiting("CrashLoopBackOff", restarts=restarts, last=end(1, small.to_line()))
    cluster.put_pod("chat-0", loop if restarts else failed(small))
    await look(cluster)
    for kind in ("Ready", "Degraded", "MemoryFit"):
        assert cluster.condition(KEY, kind)["reason"] == "KVCacheTooSmall"
        assert "maxModelLen: 3072" in cluster.condition(KEY, kind)["message"]
