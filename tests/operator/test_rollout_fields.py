"""How far a rollout goes while its new replicas fail, and what status says of a change that has not arrived."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.cluster.local.rollout import Revision, Strategy, next_counts
from pagemill_operator.reconcile import reconcile
from pagemill_operator.resource import read
from pagemill_operator.rollout_fields import allowed
from pagemill_operator.template_hash import template_fields
from tests.operator.golden_cases import EVERYTHING, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, end, running, waiting

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = replace(SETTINGS, preflight=False)
FAILS = waiting("CrashLoopBackOff", restarts=3, last=end(1))


async def look(cluster: MemoryCluster) -> None:
    await reconcile(cluster, KEY, NOW, MINE)
    cluster.observe_deployment()


async def rolling(failed: int, **spec: Any) -> MemoryCluster:
    """Five replicas, of which so many have been replaced by ones that fail."""
    cluster = MemoryCluster(stored(replicas=5, **spec))
    await look(cluster)
    for number in range(5):
        cluster.put_pod(f"old-{number}", running(True), SERVING)
    await look(cluster)
    cluster.edit(KEY, maxModelLen=99)
    await look(cluster)
    for number in range(failed):
        del cluster.objects["Pod", f"old-{number}"]
        cluster.put_pod(f"new-{number}", FAILS)
    await look(cluster)
    return cluster


def bounds(cluster: MemoryCluster) -> tuple[int, int]:
    found = cluster.child("Deployment")["spec"]["strategy"]["rollingUpdate"]
    return found["maxSurge"], found["maxUnavailable"]


@pytest.mark.parametrize(
    ("most", "failed", "allowed"),
    [(None, 0, 1), (None, 1, 1), (None, 2, 1), (1, 1, 1), (3, 0, 1), (3, 1, 2), (3, 2, 3), (3, 3, 3), (3, 4, 3)],
)
async def test_a_rollout_stops_at_so_many_failures(most: int | None, failed: int, allowed: int) -> None:
    """LLMKube#192: with no surge it needs no spare GPU; it stops by itself at the last failure that is accepted."""
    rollout = {} if most is None else {"maxFailures": most}
    assert bounds(await rolling(failed, rollout=rollout)) == (0, allowed)
    assert bounds(await rolling(failed, rollout={**rollout, "strategy": "Surge"})) == (allowed, 0)


@pytest.mark.parametrize("surge", [False, True], ids=["Replace", "Surge"])
@pytest.mark.parametrize("most", [None, 1, 2, 4, 9])
def test_the_former_ones_serve_on_where_it_has_stopped(most: int | None, surge: bool) -> None:
    """By Kubernetes' own rolling update: of five replicas as many are lost as may fail, by a surge none."""
    old, new = 5, 0
    for _ in range(50):
        bound = allowed(most, new)  # every new one fails
        strategy = Strategy(False, bound if surge else 0, 0 if surge else bound)
        counts = next_counts(5, strategy, Revision("new", new, new, 0), [Revision("old", old, old, old)])
        old, new = counts["old"], counts["new"]
    failures = min(most or 1, 5)
    assert (old, new) == (5 if surge else 5 - failures, failures)


async def test_status_says_that_it_has_stopped_when_it_has() -> None:
    assert (await rolling(1)).condition(KEY, "Progressing")["reason"] == "RolloutFailed"
    cluster = await rolling(1, rollout={"maxFailures": 2})
    goes_on = cluster.condition(KEY, "Progressing")
    assert (goes_on["status"], goes_on["reason"]) == ("True", "RollingOut")
    assert cluster.condition(KEY, "Degraded")["status"] == "True"
    cluster = await rolling(2, rollout={"maxFailures": 2})
    assert "stopped at 2 that failed" in cluster.condition(KEY, "Progressing")["message"]


async def test_once_it_is_over_one_at_a_time_again() -> None:
    cluster = await rolling(2, rollout={"maxFailures": 3})
    for number in range(2, 5):
        del cluster.objects["Pod", f"old-{number}"]
    await look(cluster)
    assert bounds(cluster) == (0, 1)


async def test_status_names_the_fields_that_have_not_reached_every_pod() -> None:
    cluster = await rolling(1)
    assert cluster.status(KEY)["rollout"] == {"pendingFields": ["maxModelLen"], "class": "restart"}
    cluster.edit(KEY, maxModelLen=None)
    await look(cluster)
    assert cluster.status(KEY)["rollout"] == {"pendingFields": ["maxModelLen"], "class": "restart"}, "the new one's"
    del cluster.objects["Pod", "new-0"]
    cluster.put_pod("old-0", running(True), SERVING)
    await look(cluster)
    assert "rollout" not in cluster.status(KEY)


async def test_the_heaviest_class_is_said() -> None:
    cluster = MemoryCluster(stored(replicas=1))
    await look(cluster)
    cluster.put_pod("chat-0", running(True), SERVING)
    cluster.edit(KEY, replicas=2, suspend=True)
    await look(cluster)
    assert cluster.status(KEY)["rollout"] == {"pendingFields": ["suspend"], "class": "operator"}
    cluster.edit(KEY, suspend=None, engine={"seed": 3})
    await look(cluster)
    assert cluster.status(KEY)["rollout"] == {"pendingFields": ["engine.seed"], "class": "restart"}


async def test_a_refused_spec_is_pending_nowhere() -> None:
    cluster = MemoryCluster(stored(replicas=1))
    await look(cluster)
    cluster.edit(KEY, replicas=2, engine={"quantization": "x"})
    await look(cluster)
    assert "rollout" not in cluster.status(KEY)


def test_a_pod_carries_what_it_was_made_from() -> None:
    fields = template_fields(read(stored(**EVERYTHING)).spec)
    assert {"model", "engine.seed", "pod.env", "imagePullSecrets"} <= set(fields)
    assert not {"replicas", "schedulingPolicy", "service.port"} & set(fields)
    assert all(len(value) == 8 for value in fields.values())
    changed = template_fields(read(stored(**{**EVERYTHING, "maxModelLen": 5})).spec)
    assert {path for path in fields if fields[path] != changed[path]} == {"maxModelLen"}
