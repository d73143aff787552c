"""LLMDeployments in every state that Argo CD's health check tells apart, as the operator's own reconcile writes them.

`python -m tests.gitops.statuses` (part of `make golden`) writes them beside the check, where upstream expects a check's test data,
and the check into the patch of Argo CD's settings. Called by test_health.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from pagemill.failures import Failure, FailureReason
from pagemill_operator.cluster.interface import Key
from pagemill_operator.reconcile import reconcile
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, failed, loading, running, unscheduled, waiting

REPOSITORY = Path(__file__).resolve().parents[2]
ARGOCD = REPOSITORY / "gitops" / "argocd"
CHECK = ARGOCD / "resource_customizations" / "pagemill.dev" / "LLMDeployment"
SETTING = "resource.customizations.health.pagemill.dev_LLMDeployment"
PATCH = ARGOCD / "argocd-cm.yaml"
KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOT_FOUND = Failure(FailureReason.MODEL_NOT_FOUND, "the hub has no model org/misspelt: check the name")


async def look(cluster: MemoryCluster, minute: int = 0) -> MemoryCluster:
    """One reconcile."""
    await reconcile(cluster, KEY, NOW + timedelta(minutes=minute), SETTINGS)
    return cluster


async def begun(**spec: Any) -> MemoryCluster:
    """Its children are made and the Deployment's controller has seen them."""
    cluster = await look(MemoryCluster(stored(**spec)))
    cluster.observe_deployment()
    return await look(cluster)


async def with_pod(status: dict[str, Any], answer: Any = None, **spec: Any) -> MemoryCluster:
    """One replica is in this state."""
    cluster = await begun(**spec)
    cluster.put_pod("chat-0", status, answer)
    return await look(cluster, 1)


async def serving(**spec: Any) -> MemoryCluster:
    return await with_pod(running(True), SERVING, **spec)


async def never_looked_at() -> MemoryCluster:
    return MemoryCluster(stored())


async def edited_a_moment_ago() -> MemoryCluster:
    cluster = await serving()
    cluster.edit(KEY, model="org/another")
    return cluster


async def rolling_out() -> MemoryCluster:
    cluster = await serving(rollout={"strategy": "Surge"})
    cluster.edit(KEY, maxModelLen=512)
    await look(cluster, 2)
    cluster.observe_deployment()
    cluster.put_pod("chat-1", running(False), loading(10))
    return await look(cluster, 3)


async def rollout_that_fails_beside_one_that_serves() -> MemoryCluster:
    cluster = await rolling_out()
    cluster.put_pod("chat-1", failed(NOT_FOUND, restarts=2))
    return await look(cluster, 4)


async def refused() -> MemoryCluster:
    cluster = await serving()
    cluster.edit(KEY, maxModelLen=-1)
    return await look(cluster, 2)


async def leaving() -> MemoryCluster:
    cluster = await serving()
    going = {"deletionTimestamp": "2026-01-01T00:05:00Z", "finalizers": ["foregroundDeletion"]}
    cluster.manifests[KEY]["metadata"] |= going
    return cluster


# By file name, which begins with the health that is expected.
CASES: dict[str, Callable[[], Awaitable[MemoryCluster]]] = {
    "progressing-no-status": never_looked_at,
    "progressing-stale-generation": edited_a_moment_ago,
    "progressing-creating": begun,
    "progressing-loading": lambda: with_pod(running(False), loading(40)),
    "progressing-rollout": rolling_out,
    "progressing-deleting": leaving,
    "healthy-serving": serving,
    "healthy-scaled-to-zero": lambda: begun(replicas=0),
    "suspended": lambda: begun(suspend=True),
    "degraded-model-not-found": lambda: with_pod(failed(NOT_FOUND, restarts=1)),
    "degraded-rollout-failed": rollout_that_fails_beside_one_that_serves,
    "degraded-no-gpu": lambda: with_pod(unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
    "degraded-image": lambda: with_pod(waiting("ImagePullBackOff", "not found")),
    "degraded-spec-refused": refused,
}


async def recorded(name: str) -> dict[str, Any]:
    """The object as the API server would hold it."""
    cluster = await CASES[name]()
    return dict(cluster.manifests[KEY])


def file_of(name: str) -> Path:
    return CHECK / "testdata" / f"{name}.yaml"


def patch() -> str:
    """What `kubectl patch configmap argocd-cm --patch-file` takes."""
    lines = (CHECK / "health.lua").read_text(encoding="utf-8").splitlines()
    return (
        f"# Made of health.lua by `make golden`; docs/gitops.md says what to do with it.\ndata:\n  {SETTING}: |\n"
        + "".join(f"    {line}".rstrip() + "\n" for line in lines)
    )


async def write() -> None:
    PATCH.write_text(patch(), encoding="utf-8")
    file_of("").parent.mkdir(exist_ok=True)
    for name in CASES:
        file_of(name).write_text(yaml.safe_dump(await recorded(name), sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(write())
