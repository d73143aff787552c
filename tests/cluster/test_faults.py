"""The API server away, frozen or without etcd, watches cut, children changed by hand: it converges and restarts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.operators import now, wait
from testbed.ready import eventually
from testbed.steady import World, steady

from pagemill_operator.cluster.kinds import FOLLOWED

pytestmark = pytest.mark.cluster
# A minute without an API server: each watch asks alone, ever more seldom, 7 times; the Lease every two seconds; the worker hardly.
WATCH_ATTEMPTS = 12 * len(FOLLOWED)
CALLS = 60


@pytest.fixture(scope="module")
def world(pagemill: Cluster) -> Iterator[World]:
    with steady(pagemill, "faults") as found:
        yield found


def converges(world: World, name: str) -> None:
    """Something new is handled, and a child that a hand takes away comes back."""
    new = deploy(world.cluster, world.model.namespace, name, replicas=0)
    new.await_condition("Ready", "True", "ScaledToZero")
    taken = world.child("service", world.model.name)["metadata"]["uid"]
    world.cluster.kubectl("delete", "service", world.model.name, "-n", world.model.namespace)
    world.comes_back("service", world.model.name, taken)
    world.model.await_condition("Ready", "True")


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
    converges(world, fault.__name__.replace("_", "-"))
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
