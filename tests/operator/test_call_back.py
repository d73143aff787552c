"""A drain that was begun is finished or called off, whatever becomes of spec and rollout: nobody who is wanted stays drained."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.interface import ClusterError, Key, Probe
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DRAIN_ANNOTATION
from pagemill_operator.scale_down import FIRST_TO_GO
from tests.operator.golden_cases import SETTINGS
from tests.operator.pod_statuses import SERVING, end, loading, running, waiting
from tests.operator.test_scale_down import Replicas, Server

KEY = Key("team", "chat")


async def emptied(*in_flight: int) -> Replicas:
    """One replica of these is to go, and drains."""
    cluster = await Replicas(*in_flight).start()
    cluster.edit(KEY, replicas=len(in_flight) - 1)
    await cluster.look()
    await cluster.look()
    assert [server.draining for server in cluster.servers.values()].count(True) == 1
    return cluster


def make_former(cluster: Replicas) -> None:
    """All pods are of a former template."""
    for (kind, _), pod in cluster.objects.items():
        if kind == "Pod":
            pod["metadata"]["annotations"] |= {"pagemill.dev/template-hash": "former"}


@pytest.mark.parametrize(
    "spec", [{"engine": {"quantization": "fp8"}}, {"replicas": "two"}], ids=["unsupported", "invalid"]
)
async def test_a_spec_that_is_refused_calls_off_what_the_one_before_began(spec: dict[str, Any]) -> None:
    """Nobody knows any more how many are wanted, and what runs is left as it is: so it serves."""
    cluster = await emptied(5, 2)
    cluster.edit(KEY, **spec)
    assert await cluster.look() is not None
    assert cluster.told("DELETE") == ["chat-1"]
    await cluster.look()
    await cluster.look()
    assert cluster.annotation("chat-1", DRAIN_ANNOTATION) is None
    cluster.writes.clear()
    assert await cluster.look() is None
    assert (cluster.count, cluster.writes, cluster.managed) == (2, [], [])


async def test_but_not_of_one_that_kubernetes_has_its_word_to_take() -> None:
    cluster = await emptied(5, 2)
    cluster.servers["chat-1"].in_flight, cluster.servers["chat-1"].refusing = 0, True
    await cluster.look()
    await cluster.look()
    assert cluster.count == 1
    cluster.edit(KEY, engine={"quantization": "fp8"})
    await cluster.look()
    assert cluster.told("DELETE") == []
    assert cluster.shrink() == ["chat-1"]


async def test_a_rollout_that_fails_has_as_many_former_replicas_as_are_wanted() -> None:
    """Kubernetes waits for the new replica for ever, and keeps the former ones: also the one that was to go before."""
    cluster = await emptied(5, 2, 9, 7)
    cluster.edit(KEY, maxModelLen=99, rollout={"strategy": "Surge"})
    make_former(cluster)
    await cluster.look()
    del cluster.objects["Pod", "chat-0"]  # whom a ReplicaSet took, when it was told of three
    cluster.servers["chat-new"] = Server(silent=True)
    cluster.put_pod("chat-new", waiting("CrashLoopBackOff", restarts=3, last=end(1)), Probe(0, {}))
    await cluster.look()
    await cluster.look()
    assert cluster.condition(KEY, "Ready")["reason"] == "RolloutFailed"
    assert not any(cluster.servers[name].draining for name in ("chat-1", "chat-2", "chat-3"))
    await cluster.look()
    assert cluster.annotation("chat-1", DRAIN_ANNOTATION) is None


async def test_one_that_drains_and_does_not_answer_is_draining_still() -> None:
    """Else the condition would go to and fro, with an event each time."""
    cluster = await emptied(5, 2)
    said = cluster.condition(KEY, "Draining")
    cluster.answers["chat-1"] = Probe(0, {})
    cluster.objects["Pod", "chat-1"]["status"] = running(False)
    cluster.servers["chat-1"].draining = False  # so that `look` leaves the answer
    cluster.servers["chat-1"].silent = True
    await cluster.look()
    assert (said["status"], cluster.condition(KEY, "Draining")) == ("True", said)


async def test_one_that_can_not_be_marked_is_not_drained() -> None:
    """Nobody would know that it is to be called back."""
    cluster = await Replicas(5, 2).start()
    cluster.refuse["Pod"] = ClusterError("an admission rule denies it", refused=True)
    cluster.edit(KEY, replicas=1)
    for _ in range(3):
        assert await cluster.look() == SETTINGS.refused_seconds, "no event tells that it is allowed"
        assert cluster.told("POST") == []
    degraded = cluster.condition(KEY, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyRefused")
    assert "Pod chat-1: an admission rule denies it" in degraded["message"]
    assert cluster.condition(KEY, "Ready")["status"] == "True"
    cluster.refuse.clear()
    await cluster.look()
    assert cluster.told("POST") == ["chat-1"]
    assert cluster.condition(KEY, "Degraded")["status"] == "False"


async def test_one_that_was_priced_while_it_loaded_is_not_taken_once_it_serves() -> None:
    cluster = await Replicas(9, 2, 7).start()
    cluster.put_pod("chat-2", running(False), loading(90))
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    assert cluster.annotation("chat-2", DELETION_COST_ANNOTATION) == FIRST_TO_GO
    cluster.objects["Pod", "chat-2"]["status"], cluster.answers["chat-2"] = running(True), SERVING
    cluster.servers["chat-1"].in_flight, cluster.servers["chat-1"].refusing = 0, True
    await cluster.look()
    assert (cluster.annotation("chat-2", DELETION_COST_ANNOTATION), cluster.count) == (None, 3)
    await cluster.look()
    assert (cluster.count, cluster.shrink()) == (2, ["chat-1"])
    cluster.servers["chat-2"].in_flight, cluster.servers["chat-2"].refusing = 0, True
    await cluster.look()
    await cluster.look()
    assert (cluster.count, cluster.shrink()) == (1, ["chat-2"])
