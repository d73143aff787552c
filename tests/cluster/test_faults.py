"""The API server away, frozen or without etcd, watches cut, children changed by hand: it converges and restarts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.control_plane import ControlPlane
from testbed.deployments import Deployed, deploy
from testbed.operators import Operators, now, wait
from testbed.ready import eventually

from pagemill_operator.cluster.kinds import FOLLOWED

pytestmark = pytest.mark.cluster
# A minute without an API server: each watch asks alone, ever more seldom, 7 times; the Lease every two seconds; the worker hardly.
WATCH_ATTEMPTS = 12 * len(FOLLOWED)
CALLS = 60


@dataclass(frozen=True)
class World:
    """A model that serves, and those who look after it."""

    cluster: Cluster
    operators: Operators
    model: Deployed

    @property
    def control_plane(self) -> ControlPlane:
        assert self.cluster.node
        return self.cluster.node.control_plane

    def processes(self) -> dict[str, tuple[str, int]]:
        """Every pod of the model and of the operator: name → (uid, restarts)."""
        pods = [*self.model.pods(), *self.operators.pods().values()]
        return {
            pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for pod in pods
        }

    def converges(self, name: str) -> None:
        """Something new is handled, and a child that a hand takes away comes back."""
        new = deploy(self.cluster, self.model.namespace, name, replicas=0)
        new.await_condition("Ready", "True", "ScaledToZero")
        taken = self.child("service", self.model.name)["metadata"]["uid"]
        self.cluster.kubectl("delete", "service", self.model.name, "-n", self.model.namespace)
        self.comes_back("service", self.model.name, taken)
        self.model.await_condition("Ready", "True")

    def child(self, kind: str, name: str) -> dict[str, Any]:
        return self.cluster.get(kind, name, "-n", self.model.namespace)

    def comes_back(self, kind: str, name: str, taken: str) -> None:
        def look() -> bool | None:
            return self.child(kind, name)["metadata"]["uid"] != taken or None

        eventually(f"the {kind} {name} again", look)


@pytest.fixture(scope="module")
def world(pagemill: Cluster) -> Iterator[World]:
    pagemill.kubectl("create", "namespace", "faults")
    model = deploy(pagemill, "faults", "steady", model="pagemill/tiny", maxModelLen=128)
    model.await_condition("Ready", "True", seconds=600)
    operators = Operators(pagemill)
    operators.standby()
    yield World(pagemill, operators, model)
    pagemill.kubectl("delete", "namespace", "faults", "--wait=false")


def api_server_killed(world: World) -> None:
    world.control_plane.kill("kube-apiserver")
    wait(40)
    world.control_plane.start_apiserver()


def api_server_frozen(world: World) -> None:
    """Its connections stay open, and nothing comes."""
    world.control_plane.freeze("kube-apiserver")
    wait(30)
    world.control_plane.thaw("kube-apiserver")


def etcd_restarted(world: World) -> None:
    world.control_plane.kill("etcd")
    wait(15)
    world.control_plane.start_etcd()


@pytest.mark.parametrize("fault", [api_server_killed, api_server_frozen, etcd_restarted])
def test_an_outage_restarts_nothing_and_is_got_over(fault: Callable[[World], None], world: World) -> None:
    pods = tuple(world.operators.pods())
    before, called, began = world.processes(), [world.operators.failed_calls(pod) for pod in pods], now()
    fault(world)
    back = now()
    eventually("an answer", lambda: world.cluster.kubectl("get", "namespace", "faults"))
    world.operators.leader()
    world.converges(fault.__name__.replace("_", "-"))
    assert world.processes() == before
    minutes = max(1.0, (back - began).total_seconds() / 60)
    for pod, calls in zip(pods, called, strict=True):
        attempts = [words for at, words in world.operators.log(pod, began) if at < back and " kopf." in words]
        assert len(attempts) <= WATCH_ATTEMPTS * minutes
        failed = world.operators.failed_calls(pod) - calls
        assert failed <= CALLS * minutes
        if fault is api_server_killed:
            assert attempts, "they are counted"
            assert failed
    world.operators.come_to_rest(10)


def test_watches_that_are_cut_miss_nothing(world: World) -> None:
    """Their connections are reset; what changes and what goes meanwhile no event tells."""
    before = world.processes()
    taken = world.child("service", "steady")["metadata"]["uid"]
    with world.operators.cut_off(*world.operators.pods(), how="reject with tcp reset"):
        world.cluster.kubectl("delete", "service", "steady", "-n", "faults")
        late = deploy(world.cluster, "faults", "late", replicas=0)
        wait(5)
    world.comes_back("service", "steady", taken)
    late.await_condition("Ready", "True", "ScaledToZero")
    world.operators.come_to_rest(10)
    assert world.processes() == before


@pytest.mark.parametrize("kind", ["deployment", "service", "serviceaccount"])
def test_a_child_that_is_deleted_or_changed_by_hand_is_put_right(kind: str, world: World) -> None:
    """Of a deployment without pods, whose Deployment may go."""
    hands = deploy(world.cluster, "faults", "hands", replicas=0)
    hands.await_condition("Ready", "True", "ScaledToZero")
    name = world.cluster.kubectl(
        "get", kind, "-n", "faults", "-l", "pagemill.dev/deployment=hands", "-o", "jsonpath={.items[0].metadata.name}"
    )
    taken = world.child(kind, name)
    world.cluster.kubectl("delete", kind, name, "-n", "faults")
    world.comes_back(kind, name, taken["metadata"]["uid"])
    label = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "a-hand"}}}
    world.cluster.kubectl("patch", kind, name, "-n", "faults", "--type=merge", "-p", json.dumps(label))

    def look() -> bool | None:
        ours = taken["metadata"]["labels"]["app.kubernetes.io/managed-by"]
        return world.child(kind, name)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == ours or None

    eventually("our label again", look)
    world.operators.come_to_rest(5)


def test_a_resource_that_is_deleted_and_made_again_is_a_new_one(world: World) -> None:
    first = deploy(world.cluster, "faults", "again", replicas=0)
    first.await_condition("Ready", "True", "ScaledToZero")
    taken = world.child("deployment", "again")["metadata"]["uid"]
    world.cluster.kubectl("delete", "llmdeployment", "again", "-n", "faults", "--wait=true")
    second = deploy(world.cluster, "faults", "again", replicas=0)
    second.await_condition("Ready", "True", "ScaledToZero")
    world.comes_back("deployment", "again", taken)
    owner = world.child("deployment", "again")["metadata"]["ownerReferences"][0]["uid"]
    assert owner == second.get()["metadata"]["uid"]
    world.operators.come_to_rest(5)
