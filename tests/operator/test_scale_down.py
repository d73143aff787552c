"""Who goes when replicas shrink, and what must have happened before: asserted over a cluster whose replicas say what runs in them.

The pods answer /ready and /drain as the server does, and the ReplicaSet takes pods in Kubernetes' order (unready, then cheap).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Key, Manifest, Probe
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DRAIN_ANNOTATION
from pagemill_operator.reconcile import reconcile
from pagemill_operator.scale_down import FIRST_TO_GO
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, end, loading, running, unscheduled, waiting

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = replace(SETTINGS, preflight=False)
ROLLOUT = {"lameDuckSeconds": 5, "drainTimeoutSeconds": 60}


@dataclass
class Server:
    """One replica's word on its management port."""

    in_flight: int = 0
    draining: bool = False
    refusing: bool = False  # its lame duck's time is over
    silent: bool = False  # its management port does not answer

    def state(self) -> Probe:
        if self.silent:
            return Probe(0, {})
        drained = self.draining and self.refusing and not self.in_flight
        return Probe(200, {"draining": self.draining, "drained": drained, "inFlight": self.in_flight})


class Replicas(MemoryCluster):
    """Pods with servers; `shrink` is what the ReplicaSet does."""

    def __init__(self, *in_flight: int, **spec: Any) -> None:
        super().__init__(stored(replicas=len(in_flight), rollout=ROLLOUT, **spec))
        self.servers = {f"chat-{number}": Server(count) for number, count in enumerate(in_flight)}
        self.now = NOW

    async def start(self) -> Replicas:
        await self.look()
        self.observe_deployment()
        for number, name in enumerate(self.servers):
            self.put_pod(name, running(True), SERVING, creationTimestamp=f"2025-12-31T00:00:{number:02}Z")
        await self.look()
        self.writes.clear()
        return self

    async def look(self) -> float | None:
        """One reconcile; the kubelet's word on readiness is up to date before it."""
        for name, server in self.servers.items():
            if ("Pod", name) in self.objects and server.draining:
                self.objects["Pod", name]["status"] = running(False)
                self.answers[name] = Probe(503, {**SERVING.body, "ready": False, "phase": "Draining"})
        self.managed.clear()
        again = await reconcile(self, KEY, self.now, MINE)
        if ("Deployment", "chat") in self.objects:
            self.observe_deployment()
        return again

    async def manage(self, pod: Manifest, method: str, path: str, body: Any = None) -> Probe:
        name = pod["metadata"]["name"]
        self.managed.append((name, method, path, body))
        server = self.servers[name]
        if path != "/drain" or server.silent:
            return Probe(0, {})
        if method == "POST":
            server.draining = True
        elif method == "DELETE":
            server.draining = server.refusing = False
            self.objects["Pod", name]["status"] = running(True)
            self.answers[name] = SERVING
        return server.state()

    @property
    def count(self) -> int:
        return int(self.child("Deployment")["spec"]["replicas"])

    def shrink(self) -> list[str]:
        """Take what is too much, as a ReplicaSet does; the names of those that went."""
        pods = [found for (kind, _), found in self.objects.items() if kind == "Pod"]
        pods.sort(key=_leaves_first)
        gone = [pod["metadata"]["name"] for pod in pods[: len(pods) - self.count]]
        for name in gone:
            del self.objects["Pod", name]
        return gone

    def told(self, method: str) -> list[str]:
        return [pod for pod, asked, path, _ in self.managed if asked == method and path == "/drain"]

    def annotation(self, name: str, which: str) -> str | None:
        found: str | None = (self.objects["Pod", name]["metadata"].get("annotations") or {}).get(which)
        return found


def _leaves_first(pod: Manifest) -> tuple[bool, bool, int]:
    status = pod["status"]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])
    cost = int((pod["metadata"].get("annotations") or {}).get(DELETION_COST_ANNOTATION, "0"))
    return (status["phase"] != "Pending", ready, cost)


async def test_the_least_busy_goes_when_it_has_finished_what_it_runs() -> None:
    """kthena#1589 and gpustack#6059: a scale-down cuts no stream, and it takes who has least to finish."""
    cluster = await Replicas(5, 2, 9).start()
    cluster.edit(KEY, replicas=2)
    assert await cluster.look() == MINE.look_again_seconds
    assert cluster.told("POST") == ["chat-1"]
    # A lame duck's time, and what the kubelet needs to see that it is unready.
    assert cluster.managed[-1][3] == {"lameDuckSeconds": 9, "timeoutSeconds": 60}
    for _ in range(3):
        assert await cluster.look() == MINE.look_again_seconds
        assert cluster.count == 3
        assert cluster.told("POST") == []
    assert cluster.condition(KEY, "Draining")["status"] == "True"
    cluster.servers["chat-1"].in_flight = 0
    await cluster.look()
    assert cluster.count == 3, "its lame duck's time is not over: it still takes requests"
    cluster.servers["chat-1"].refusing = True
    await cluster.look()
    assert cluster.annotation("chat-1", DELETION_COST_ANNOTATION) == FIRST_TO_GO
    assert cluster.count == 3, "the price must be known before there is one to take"
    await cluster.look()
    assert cluster.count == 2
    assert cluster.shrink() == ["chat-1"]
    assert await cluster.look() is None
    assert cluster.condition(KEY, "Draining")["status"] == "False"
    assert "rollout" not in cluster.status(KEY)


async def test_the_busiest_of_many_stays_and_each_goes_when_it_is_empty() -> None:
    cluster = await Replicas(5, 2, 9).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    assert sorted(cluster.told("POST")) == ["chat-0", "chat-1"]
    assert cluster.status(KEY)["rollout"] == {"pendingFields": ["replicas"], "class": "operator"}
    cluster.servers["chat-0"] = Server(0, draining=True, refusing=True)
    await cluster.look()
    await cluster.look()
    assert (cluster.count, cluster.shrink()) == (2, ["chat-0"])
    for _ in range(3):
        await cluster.look()
        assert (cluster.count, cluster.told("POST")) == (2, [])
    cluster.servers["chat-1"] = Server(0, draining=True, refusing=True)
    await cluster.look()
    await cluster.look()
    assert (cluster.count, cluster.shrink()) == (1, ["chat-1"])


async def test_a_look_at_a_cache_that_lags_takes_no_more_than_are_too_many() -> None:
    cluster = await Replicas(0, 0, 0).start()
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    victim = cluster.told("POST")[0]
    cluster.servers[victim] = Server(0, draining=True, refusing=True)
    for _ in range(6):  # the pod is on its way out, and nobody has told
        await cluster.look()
        assert cluster.told("POST") == cluster.told("DELETE") == []
    assert cluster.count == 2


async def test_replicas_that_are_wanted_again_are_called_back() -> None:
    cluster = await Replicas(1, 2, 3).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    assert cluster.told("DELETE") == ["chat-1"]
    assert [cluster.servers[name].draining for name in cluster.servers] == [True, False, False]
    cluster.edit(KEY, replicas=3)
    await cluster.look()
    assert cluster.told("DELETE") == ["chat-0"]
    await cluster.look()
    assert cluster.annotation("chat-0", DRAIN_ANNOTATION) is None
    assert await cluster.look() is None
    assert (cluster.count, cluster.condition(KEY, "Ready")["status"]) == (3, "True")


async def test_one_that_was_priced_already_is_called_back_too() -> None:
    cluster = await Replicas(0, 7).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    cluster.servers["chat-0"].refusing = True
    await cluster.look()
    assert cluster.annotation("chat-0", DELETION_COST_ANNOTATION) == FIRST_TO_GO
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    assert cluster.annotation("chat-0", DELETION_COST_ANNOTATION) is None
    assert not cluster.servers["chat-0"].draining


async def test_a_call_back_that_is_not_heard_is_repeated() -> None:
    cluster = await Replicas(0, 7).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    cluster.servers["chat-0"].silent = True
    cluster.edit(KEY, replicas=2)
    for _ in range(3):
        assert await cluster.look() == MINE.look_again_seconds
        assert cluster.told("DELETE") == ["chat-0"]
    cluster.servers["chat-0"].silent = False
    await cluster.look()
    await cluster.look()
    assert cluster.annotation("chat-0", DRAIN_ANNOTATION) is None
    assert await cluster.look() is None


async def test_another_operator_goes_on_where_one_was_killed() -> None:
    """All of it stands in the cluster: who is marked goes on being the one, whoever is less busy by then."""
    cluster = await Replicas(5, 2, 9).start()
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    cluster.servers["chat-0"].in_flight = 0
    await cluster.look()
    assert (cluster.told("POST"), cluster.told("DELETE")) == ([], [])
    assert [name for name, server in cluster.servers.items() if server.draining] == ["chat-1"]


async def test_a_server_that_has_forgotten_its_drain_is_told_again() -> None:
    cluster = await Replicas(5, 2, 9).start()
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    cluster.servers["chat-1"] = Server(1)  # its container was started again
    cluster.objects["Pod", "chat-1"]["status"] = running(True)
    cluster.answers["chat-1"] = SERVING
    await cluster.look()
    assert cluster.told("POST") == ["chat-1"]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), None),
        (waiting("ContainerCreating"), None),
        (waiting("CrashLoopBackOff", restarts=3, last=end(1)), None),
        (running(False), loading(40)),
    ],
    ids=["pending", "creating", "crash", "loading"],
)
async def test_who_serves_nobody_goes_first_and_at_once(status: dict[str, Any], answer: Probe | None) -> None:
    cluster = await Replicas(0, 0, 0).start()
    cluster.put_pod("chat-2", status, answer)
    if answer is None:
        cluster.answers.pop("chat-2")
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    await cluster.look()
    assert (cluster.count, cluster.told("POST")) == (2, [])
    assert cluster.shrink() == ["chat-2"]
    assert not any(server.draining for server in cluster.servers.values())


async def test_one_that_is_too_busy_to_answer_is_not_taken_for_idle() -> None:
    cluster = await Replicas(9, 8, 99).start()
    busy = running(False)
    busy["containerStatuses"][0]["started"] = True
    cluster.put_pod("chat-2", busy, Probe(0, {}))
    cluster.servers["chat-2"].silent = True
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    assert cluster.told("POST") == ["chat-1"]


async def test_of_equals_the_youngest_goes() -> None:
    cluster = await Replicas(0, 0, 0).start()
    cluster.edit(KEY, replicas=2)
    await cluster.look()
    assert cluster.told("POST") == ["chat-2"]


async def test_a_drain_that_never_ends_holds_up_nothing_for_ever() -> None:
    cluster = await Replicas(3, 4).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    cluster.now += timedelta(seconds=5 + 4 + 60)
    await cluster.look()
    await cluster.look()
    assert cluster.count == 2
    cluster.now += timedelta(seconds=15)
    await cluster.look()
    await cluster.look()
    assert (cluster.count, cluster.shrink()) == (1, ["chat-0"])


async def test_nor_does_a_management_port_that_nobody_answers() -> None:
    """A policy of the network's may be in the way: the SIGTERM drains it just as well."""
    cluster = await Replicas(3, 4).start()
    for server in cluster.servers.values():
        server.silent = True
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    assert cluster.count == 2
    cluster.now += timedelta(seconds=15)
    await cluster.look()
    await cluster.look()
    assert cluster.count == 1


@pytest.mark.parametrize("change", [{"suspend": True}, {"replicas": 0}, {"replicas": 1, "maxModelLen": 99}])
async def test_to_zero_and_during_a_rollout_it_is_lowered_at_once(change: dict[str, Any]) -> None:
    cluster = await Replicas(3, 4).start()
    cluster.edit(KEY, **change)
    await cluster.look()
    assert cluster.count == change.get("replicas", 0)
    assert cluster.told("POST") == []


async def test_a_rollout_calls_back_whom_it_needs() -> None:
    cluster = await Replicas(3, 4).start()
    cluster.edit(KEY, replicas=1)
    await cluster.look()
    assert cluster.servers["chat-0"].draining
    cluster.edit(KEY, replicas=2, maxModelLen=99)
    await cluster.look()
    assert not cluster.servers["chat-0"].draining


async def test_a_drain_of_a_persons_own_is_left_to_them() -> None:
    cluster = await Replicas(3, 4).start()
    cluster.servers["chat-1"].draining = True
    await cluster.look()
    await cluster.look()
    assert cluster.told("DELETE") == []


async def test_a_hand_that_counts_the_deployment_down_is_put_right_without_a_drain() -> None:
    cluster = await Replicas(3, 4).start()
    cluster.child("Deployment")["spec"]["replicas"] = 1
    await cluster.look()
    assert (cluster.count, cluster.told("POST")) == (2, [])


async def test_while_nothing_must_go_no_replica_is_asked() -> None:
    cluster = await Replicas(3, 4).start()
    await cluster.look()
    assert cluster.managed == []
