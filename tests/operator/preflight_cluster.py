"""A cluster whose preflight Jobs get pods that end as they are told to: for the preflight's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pagemill.failures import Failure, FailureReason
from pagemill.preflight_report import Report
from pagemill_operator.cluster.interface import Key, Probe
from pagemill_operator.observe import observe
from pagemill_operator.preflight import Preflight, preflight
from pagemill_operator.reconcile import reconcile
from pagemill_operator.resource import read
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import MODEL, stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, running

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOKING = replace(SETTINGS, preflight=True)
SHA = "c" * 40
CAPACITY = {
    "weightsBytes": 100,
    "kvCacheBytes": 10,
    "kvBlocks": 5,
    "maxConcurrentTokens": 160,
    "maxModelLenThatFits": 160,
}
PINNED = Report("Fits", SHA, f"hf://{MODEL}@{SHA}", CAPACITY)
GATED = Failure(FailureReason.GATED_MODEL, "org/name is gated")


async def run(cluster: MemoryCluster, at: float = 0, passes: int = 1) -> float | None:
    again = None
    for _ in range(passes):
        again = await reconcile(cluster, KEY, NOW + timedelta(seconds=at), LOOKING)
    return again


async def look(cluster: MemoryCluster, at: float = 0) -> Preflight:
    """What `preflight` says of the cluster as it stands."""
    world = await observe(cluster, KEY)
    return preflight(read(cluster.manifests[KEY]), world, LOOKING, NOW + timedelta(seconds=at))


def jobs(cluster: MemoryCluster) -> list[dict[str, Any]]:
    return [found for (kind, _), found in cluster.objects.items() if kind == "Job"]


def job(cluster: MemoryCluster) -> dict[str, Any]:
    (found,) = jobs(cluster)
    return found


def arguments(cluster: MemoryCluster) -> list[str]:
    (container,) = job(cluster)["spec"]["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def value(cluster: MemoryCluster, flag: str) -> str | None:
    words = arguments(cluster)
    return words[words.index(flag) + 1] if flag in words else None


def put_job_pod(cluster: MemoryCluster, status: Mapping[str, Any], answer: Probe | None = None) -> None:
    """The pod that the Job controller makes."""
    made = job(cluster)
    template = made["spec"]["template"]
    name = f"{made['metadata']['name']}-abcde"
    metadata = {**template["metadata"], "name": name, "namespace": "team", "ownerReferences": [made["metadata"]]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": dict(status)}
    cluster.objects["Pod", name] = pod
    if answer is not None:
        cluster.answers[name] = answer


def ended(code: int, message: str, at: float = 0, reason: str = "Error") -> dict[str, Any]:
    finished = (NOW + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")
    end = {"exitCode": code, "message": message, "finishedAt": finished, "reason": reason}
    state = {"name": "preflight", "restartCount": 0, "state": {"terminated": end}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}


def passed(report: Report = PINNED) -> dict[str, Any]:
    return ended(0, report.to_line())


def drop_orphans(cluster: MemoryCluster) -> None:
    """As garbage collection does: pods whose Job has gone."""
    uids = {made["metadata"]["uid"] for made in jobs(cluster)}
    for kind, name in list(cluster.objects):
        owners = cluster.objects[kind, name]["metadata"].get("ownerReferences") or ()
        if kind == "Pod" and "-preflight-" in name and not any(owner["uid"] in uids for owner in owners):
            del cluster.objects[kind, name]


async def serving(**spec: Any) -> MemoryCluster:
    """A cluster whose deployment has passed and serves."""
    cluster = MemoryCluster(stored(**spec))
    await run(cluster)
    put_job_pod(cluster, passed())
    await run(cluster, passes=2)
    drop_orphans(cluster)
    cluster.observe_deployment()
    cluster.put_pod("chat-0", running(True), SERVING)
    await run(cluster)
    cluster.writes.clear()
    return cluster
