"""Events: one for each transition, once, whoever says it and however often; and never in the way of the status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagemill_operator.announce import announce
from pagemill_operator.cluster.interface import ClusterError, Key, Manifest
from pagemill_operator.events import events
from pagemill_operator.reconcile import reconcile
from pagemill_operator.resource import owner_of
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, loading, running, waiting

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = owner_of(stored())
PULL = waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/x": ErrImagePull: not found')


def condition(kind: str, status: str, reason: str, message: str = "so it is", generation: int = 1) -> dict[str, Any]:
    """As it stands in a status since midnight."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def body(*conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {"conditions": list(conditions)}


def said(found: tuple[Manifest, ...]) -> list[str]:
    return [f"{one['type']} {one['reason']}" for one in found]


READY = condition("Ready", "True", "Serving")
LOADING = condition("Progressing", "True", "Loading")
STARTING = condition("Progressing", "True", "Starting")
FINE = condition("Degraded", "False", "AsWanted")
BROKEN = condition("Degraded", "True", "OOMKilled")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((), (condition("Ready", "False", "Creating"), LOADING, FINE), ["Normal Loading"]),
        ((READY, FINE), (READY, FINE), []),
        ((READY,), (condition("Ready", "True", "Serving", "2 of 2 replicas answer"),), []),
        ((READY,), (condition("Ready", "True", "Scaling"),), ["Normal Scaling"]),
        ((STARTING,), (LOADING,), ["Normal Loading"]),
        ((FINE,), (BROKEN,), ["Warning OOMKilled"]),
        ((BROKEN,), (FINE,), ["Normal AsWanted"]),
        (
            (READY, FINE),
            (condition("Ready", "False", "OOMKilled"), BROKEN),
            ["Warning OOMKilled", "Warning OOMKilled"],
        ),
        (  # what is wrong beside the replicas is not what they wait for
            (READY, FINE),
            (condition("Ready", "False", "Loading"), condition("Degraded", "True", "MonitoringUnavailable")),
            ["Normal Loading", "Warning MonitoringUnavailable"],
        ),
        (  # a step on the way, once
            (condition("Ready", "False", "Starting"), STARTING),
            (condition("Ready", "False", "Loading"), LOADING),
            ["Normal Loading"],
        ),
        (
            (condition("MemoryFit", "Unknown", "NotMeasured"),),
            (condition("MemoryFit", "False", "KVCacheTooSmall"),),
            ["Warning KVCacheTooSmall"],
        ),
    ],
)
def test_what_changed_is_said(before: tuple[Any, ...], after: tuple[Any, ...], expected: list[str]) -> None:
    assert said(events(OWNER, body(*before), body(*after), NOW)) == expected


def test_an_event_is_about_the_resource() -> None:
    (event,) = events(OWNER, body(FINE), body(BROKEN), NOW)
    assert event["involvedObject"] == {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "namespace": "team",
        "name": "chat",
        "uid": "uid-of-chat",
    }
    assert event["message"] == "Degraded=True: so it is"
    assert (event["metadata"]["namespace"], event["reportingComponent"]) == ("team", "pagemill-operator")


def test_a_long_message_is_cut_to_what_kubernetes_takes() -> None:
    (event,) = events(OWNER, body(FINE), body({**BROKEN, "message": "x" * 5000}), NOW)
    assert len(event["message"]) == 1024


def names(before: Mapping[str, Any], after: Mapping[str, Any], now: datetime = NOW, **owner: Any) -> set[str]:
    made = stored(**owner)
    return {event["metadata"]["name"] for event in events(owner_of(made), body(before), body(after), now)}


def test_the_name_follows_from_the_change() -> None:
    """So that the second to say it, after a crash or beside another operator, finds it said."""
    first = names(FINE, BROKEN)
    assert names(FINE, BROKEN, NOW + timedelta(minutes=5)) == first, "not from the clock"
    assert names(FINE, {**BROKEN, "message": "4 restarts"}) == first, "nor from the words"
    others = [
        names(FINE, {**BROKEN, "reason": "ProbeFailed"}),
        names({**FINE, "lastTransitionTime": "2026-01-01T00:00:01Z"}, BROKEN),
        names(FINE, {**BROKEN, "observedGeneration": 2}),
        names(BROKEN, FINE),
        names(FINE, BROKEN, name="other"),
    ]
    assert len({*first, *(name for group in others for name in group)}) == 6


async def run(cluster: MemoryCluster, now: datetime = NOW) -> None:
    await reconcile(cluster, KEY, now, SETTINGS)


def posted(cluster: MemoryCluster) -> list[str]:
    return [event["message"].partition(":")[0] + " " + event["reason"] for event in cluster.posted]


async def test_a_life_is_told_step_by_step() -> None:
    cluster = MemoryCluster(stored())
    steps: list[tuple[Callable[[], None], list[str]]] = [
        (lambda: None, ["Progressing=True Creating"]),
        (cluster.observe_deployment, ["Progressing=True Starting"]),
        (lambda: cluster.put_pod("chat-0", running(False), loading(5)), ["Progressing=True Loading"]),
        (lambda: cluster.put_pod("chat-0", running(False), loading(80)), []),
        (
            lambda: cluster.put_pod("chat-0", running(True), SERVING),
            ["Ready=True Serving", "Progressing=False Settled"],
        ),
        (
            lambda: cluster.put_pod("chat-0", PULL, loading(0)),
            ["Ready=False ImagePullFailure", "Progressing=False ImagePullFailure", "Degraded=True ImagePullFailure"],
        ),
        (
            lambda: cluster.put_pod("chat-0", running(True), SERVING),
            ["Ready=True Serving", "Progressing=False Settled", "Degraded=False AsWanted"],
        ),
    ]
    for minute, (step, expected) in enumerate(steps):
        step()
        cluster.posted.clear()
        for look in range(3):
            await run(cluster, NOW + timedelta(minutes=minute, seconds=look))
        told = [line for line in posted(cluster) if line.startswith(("Ready", "Progressing", "Degraded"))]
        assert told == expected, f"step {minute}"


async def test_going_to_and_fro_is_not_told_for_ever() -> None:
    """Replicas that start one after the other go from Loading to Starting and back; the status follows, the events don't."""
    cluster = MemoryCluster(stored(replicas=2))
    await run(cluster)
    cluster.observe_deployment()
    for number in range(20):
        cluster.put_pod("chat-0", running(False), loading(50) if number % 2 else SERVING)
        await run(cluster, NOW + timedelta(seconds=number))
    told = [line for line in posted(cluster) if line.startswith("Progressing")]
    assert len(told) == len(set(told)) + 1 == 4, told  # Creating, Starting, Loading, and Starting again


async def test_a_crash_between_event_and_status_says_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    cluster.observe_deployment()
    cluster.put_pod("chat-0", PULL)
    before = len(cluster.posted)

    async def killed(*_: object) -> None:
        raise ClusterError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "patch_status", killed)
        with pytest.raises(ClusterError):
            await run(cluster)
    said_once = len(cluster.posted)
    assert said_once > before, "events come before the status, or a crash would lose them"
    await run(cluster, NOW + timedelta(seconds=30))
    assert len(cluster.posted) == said_once


class Deaf(MemoryCluster):
    """Takes no events."""

    def __init__(self, *resources: Mapping[str, Any], error: ClusterError) -> None:
        super().__init__(*resources)
        self.error = error
        self.asked = 0

    async def post_event(self, event: Manifest) -> None:
        self.asked += 1
        raise self.error


@pytest.mark.parametrize("refused", [True, False], ids=["forbidden", "away"])
async def test_events_that_cannot_be_posted_do_not_hold_up_the_status(
    refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = "locked" if refused else "far"  # of this test: a refusal is logged once for a namespace
    (event, other) = events(OWNER, body(READY, FINE), body(condition("Ready", "False", "X"), BROKEN), NOW)
    found = [{**one, "metadata": {**one["metadata"], "namespace": namespace}} for one in (event, other)]
    cluster = Deaf(stored(), error=ClusterError("events is forbidden", refused=refused))
    with caplog.at_level(logging.WARNING, "pagemill.operator"):
        await announce(cluster, found)
        await announce(cluster, found)
    assert cluster.asked == 2, "the rest is left: the API server has other worries"
    assert len(caplog.records) == (1 if refused else 2)
    await run(cluster)
    assert cluster.status(KEY)["observedGeneration"] == 1


async def test_a_namespace_that_goes_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    words = (
        'events "chat.1" is forbidden: unable to create new content in namespace team because it is being terminated'
    )
    with caplog.at_level(logging.WARNING, "pagemill.operator"):
        await announce(Deaf(error=ClusterError(words, refused=True)), events(OWNER, body(FINE), body(BROKEN), NOW))
    assert not caplog.records
