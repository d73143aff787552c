"""Hot fields: a ConfigMap for servers that start, a call to each that runs with others, and pods that stay what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagemill.hot_settings import NAMES, digest
from pagemill_operator.cluster.interface import Key, Probe
from pagemill_operator.hot_settings import FIELDS, settings_of
from pagemill_operator.reconcile import reconcile
from pagemill_operator.resource import read
from pagemill_operator.settings import Settings
from tests.operator.golden_cases import EVERYTHING, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, loading, running

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = replace(SETTINGS, preflight=False)


async def look(cluster: MemoryCluster, settings: Settings = MINE) -> float | None:
    cluster.managed.clear()
    return await reconcile(cluster, KEY, NOW, settings)


def wanted(**spec: Any) -> dict[str, Any]:
    return settings_of(read(stored(**spec)).spec)


def serving(settings: dict[str, Any]) -> Probe:
    """/ready of a replica with these settings."""
    return Probe(200, {**SERVING.body, "settings": digest(settings)})


async def served(replicas: int = 1, **spec: Any) -> MemoryCluster:
    cluster = MemoryCluster(stored(replicas=replicas, **spec))
    await look(cluster)
    cluster.observe_deployment()
    for number in range(replicas):
        cluster.put_pod(f"chat-{number}", running(True), serving(wanted(**spec)))
    await look(cluster)
    await look(cluster)
    cluster.writes.clear()
    return cluster


def calls(cluster: MemoryCluster) -> list[tuple[str, str, Any]]:
    """Who was told what."""
    return [(pod, path, body) for pod, method, path, body in cluster.managed if method == "PATCH"]


def test_the_settings_are_all_that_both_sides_name() -> None:
    assert tuple(wanted()) == NAMES == tuple(FIELDS)


async def test_a_change_is_told_to_each_replica_and_nothing_restarts() -> None:
    """kubeai#219, the other way: a change reaches what runs, and here it costs no restart."""
    cluster = await served(2)
    assert calls(cluster) == []
    template = cluster.child("Deployment")["spec"]["template"]
    cluster.edit(KEY, schedulingPolicy="fair", scheduling={"weights": {"a": 2}})
    assert await look(cluster) == MINE.look_again_seconds
    asked = wanted(schedulingPolicy="fair", scheduling={"weights": {"a": 2}})
    assert calls(cluster) == [("chat-0", "/config", asked), ("chat-1", "/config", asked)]
    assert json.loads(cluster.child("ConfigMap", "chat-settings")["data"]["settings.json"]) == asked
    assert cluster.child("Deployment")["spec"]["template"] == template
    assert not [write for write in cluster.writes if "Deployment" in write]


async def test_status_says_what_is_pending_until_every_replica_has_it() -> None:
    cluster = await served(2)
    cluster.edit(KEY, schedulingPolicy="fair", scheduling={"maxQueuedRequests": 3})
    for name in ("chat-0", "chat-1"):
        cluster.management[name, "/config"] = Probe(200, {"settings": wanted()})
    await look(cluster)
    assert cluster.status(KEY)["rollout"] == {
        "pendingFields": ["scheduling.maxQueuedRequests", "schedulingPolicy"],
        "class": "hot",
    }
    asked = wanted(schedulingPolicy="fair", scheduling={"maxQueuedRequests": 3})
    cluster.answers["chat-0"] = serving(asked)
    await look(cluster)
    assert [pod for pod, _, _ in calls(cluster)] == ["chat-1"]
    cluster.answers["chat-1"] = serving(asked)
    assert await look(cluster) is None
    assert "rollout" not in cluster.status(KEY)
    assert calls(cluster) == []


async def test_what_a_hand_changed_on_a_replica_is_put_right() -> None:
    cluster = await served()
    cluster.answers["chat-0"] = serving(wanted() | {"policy": "deadline"})
    await look(cluster)
    assert calls(cluster) == [("chat-0", "/config", wanted())]


async def test_a_field_that_is_removed_goes_back_to_its_default() -> None:
    cluster = await served(schedulingPolicy="priority", scheduling={"agingSeconds": 5})
    cluster.edit(KEY, schedulingPolicy=None, scheduling=None)
    await look(cluster)
    ((_, _, asked),) = calls(cluster)
    assert (asked["policy"], asked["aging_seconds"]) == ("fcfs", 30)


@pytest.mark.parametrize(
    ("pod", "answer"),
    [
        (running(False), loading(10)),  # it reads its file
        (running(True), Probe(200, {**SERVING.body, "phase": "Draining", "settings": "other"})),  # it goes
        (running(True), SERVING),  # an image that knows of no digest
        (running(True), Probe(0, {})),
    ],
    ids=["loading", "draining", "older", "silent"],
)
async def test_who_is_not_told(pod: dict[str, Any], answer: Probe) -> None:
    cluster = await served()
    cluster.put_pod("chat-0", pod, answer)
    cluster.edit(KEY, schedulingPolicy="fair")
    await look(cluster)
    assert calls(cluster) == []


async def test_one_that_does_not_take_the_call_is_told_again() -> None:
    cluster = await served()
    cluster.edit(KEY, schedulingPolicy="fair")
    for _ in range(3):
        assert await look(cluster) == MINE.look_again_seconds
        assert len(calls(cluster)) == 1


async def test_settings_that_a_replica_refuses_are_told_and_it_serves_on() -> None:
    cluster = await served()
    cluster.edit(KEY, schedulingPolicy="own:Policy")
    message = 'The scheduling policy "own:Policy" was not found: there is no module own'
    cluster.management["chat-0", "/config"] = Probe(400, {"error": {"message": message}})
    assert await look(cluster) == MINE.refused_seconds, "no event tells that it would take them now"
    degraded = cluster.condition(KEY, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "SettingsRefused")
    assert message in degraded["message"]
    assert cluster.condition(KEY, "Ready")["status"] == "True"
    cluster.writes.clear()
    await look(cluster)
    assert cluster.writes == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Probe(401, {"error": {"message": "no such token"}}), "no such token"),
        (Probe(404, {}), "it answers 404 and does not say why"),
        (Probe(400, {"error": "?"}), "it answers 400 and does not say why"),
    ],
    ids=["token", "path", "words"],
)
async def test_so_is_a_management_port_that_does_not_take_calls(answer: Probe, says: str) -> None:
    """It would be called every other second, and nobody be told."""
    cluster = await served()
    cluster.edit(KEY, schedulingPolicy="fair")
    cluster.management["chat-0", "/config"] = answer
    assert await look(cluster) == MINE.refused_seconds
    degraded = cluster.condition(KEY, "Degraded")
    assert (degraded["reason"], says in degraded["message"]) == ("SettingsRefused", True)


def test_everything_that_is_hot_is_sent() -> None:
    asked = wanted(**EVERYTHING)
    assert asked == {
        "policy": "fair",
        "aging_seconds": 12.5,
        "ttft_ms": 800,
        "weights": {"team-a": 2, "team-b": 0.5},
        "max_num_queued_reqs": 100,
        "max_num_queued_tokens": 50000,
    }
