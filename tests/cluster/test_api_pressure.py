"""An API server that answers all the while and says no: 429 to every call, 410 to every watch, 409 to the Lease's renewals."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import LABEL, Deployed, deploy, manifest
from testbed.operators import ACCOUNT, CALLS, POD_NAME, Operators, now, time_of, wait
from testbed.ready import eventually
from testbed.refusals import compact, jail, lease_edited, rejected
from testbed.steady import World, steady

from pagemill_operator.cluster.kinds import FOLLOWED
from pagemill_operator.metrics import LLMDEPLOYMENTS

pytestmark = pytest.mark.cluster

PRESSED = "pressure"  # the namespace
JAILED_SECONDS = 20.0
CROWD = 20  # LLMDeployments that all want to be written about at once
LIST = "/apis/pagemill.dev/v1alpha1/llmdeployments"


@pytest.fixture(scope="module")
def world(pagemill: Cluster) -> Iterator[World]:
    if pagemill.node is None:
        pytest.skip("needs the control plane of a cluster of our own")
    with steady(pagemill, PRESSED) as found:
        yield found


def crowd_of(cluster: Cluster, **spec: Any) -> list[Deployed]:
    """Many LLMDeployments without pods, in one call."""
    items = [manifest(f"one{number}", replicas=0, **spec) for number in range(CROWD)]
    cluster.apply({"apiVersion": "v1", "kind": "List", "items": items}, PRESSED)
    return [Deployed(cluster, PRESSED, item["metadata"]["name"]) for item in items]


def settled(deployed: Deployed) -> None:
    deployed.await_condition("Ready", "True", "ScaledToZero")


def restart(world: World) -> None:
    """The API server; every connection to it is broken."""
    world.control_plane.kill("kube-apiserver")
    world.control_plane.start_apiserver()
    eventually("an answer", lambda: world.cluster.kubectl("get", "namespace", PRESSED))


def workers_refusals(operators: Operators, pod: str) -> int:
    """How many of its calls, but for the watches and the Lease, got a 429."""
    counts = (CALLS.match(line) for line in operators.metrics(pod) if 'kind="leases"' not in line)
    return sum(int(float(found["count"])) for found in counts if found and found["code"] == "429")


def test_an_api_server_that_turns_every_call_away_is_not_stormed(world: World) -> None:
    before, pods, began = world.processes(), tuple(world.operators.pods()), now()
    for deployed in crowd_of(world.cluster):
        settled(deployed)
    with jail(world.cluster):
        refused = sum(workers_refusals(world.operators, pod) for pod in pods)
        crowd = crowd_of(world.cluster, servedModelNames=["another"])
        new = deploy(world.cluster, PRESSED, "meanwhile", replicas=0)
        wait(8)  # not so long that the leader would have to stop
        refused = sum(workers_refusals(world.operators, pod) for pod in pods) - refused
        assert 0 < refused < CROWD, "what one call is told holds for all"
        # Watches are asked for again when their connections break, and are turned away then.
        with world.operators.cut_off(*pods, how="reject with tcp reset"):
            restart(world)
        turned_away, since = rejected(world.cluster), now()
        wait(JAILED_SECONDS)
        calls, seconds = rejected(world.cluster) - turned_away, (now() - since).total_seconds()
        assert new.get().get("status") is None, "nothing of the operator's comes through"
    asking = len(pods) * len(FOLLOWED)
    assert asking < calls <= asking * seconds / 2
    settled(new)
    for deployed in crowd:
        settled(deployed)
    assert world.processes() == before
    acted_in_turn(world.cluster, began)
    world.operators.come_to_rest(8)


def watched_since(cluster: Cluster, version: str) -> dict[str, Any]:
    """The first event that a watch from there on is answered with."""
    query = urllib.parse.urlencode({"watch": 1, "resourceVersion": version, "timeoutSeconds": 5})
    first: dict[str, Any] = json.loads(cluster.kubectl("get", "--raw", f"{LIST}?{query}").splitlines()[0])
    return first


def test_watches_that_are_told_that_their_version_is_gone_miss_nothing(world: World) -> None:
    """What changes, comes and goes while they are cut off is in no history any more: neither in etcd's nor in the API server's."""
    edited, gone = (deploy(world.cluster, PRESSED, name, replicas=0) for name in ("edited", "gone"))
    settled(edited)
    settled(gone)
    before = world.processes()
    service = world.child("service", "steady")["metadata"]["uid"]
    with world.operators.cut_off(*world.operators.pods(), how="reject with tcp reset"):
        version = json.loads(world.cluster.kubectl("get", "--raw", f"{LIST}?limit=1"))["metadata"]["resourceVersion"]
        late = deploy(world.cluster, PRESSED, "late", replicas=0)
        deploy(world.cluster, PRESSED, "edited", replicas=0, servedModelNames=["another"])
        world.cluster.kubectl("delete", "llmdeployment", "gone", "-n", PRESSED)
        world.cluster.kubectl("delete", "service", "steady", "-n", PRESSED)
        eventually("the end of its children", lambda: not children(gone) or None)  # no event of theirs will tell of it
        compact(world.control_plane)
        restart(world)  # what it keeps of the watches' past ends with it
        told = watched_since(world.cluster, version)
        assert (told["type"], told["object"]["code"]) == ("ERROR", 410)
    settled(late)
    settled(edited)
    world.comes_back("service", "steady", service)
    eventually("the end of what was gone", lambda: forgotten(world))
    assert world.processes() == before
    world.operators.come_to_rest(8)


def children(deployed: Deployed) -> str:
    kinds = "deployments,services,serviceaccounts,configmaps"
    selector = f"{LABEL}={deployed.name}"
    return deployed.cluster.kubectl("get", kinds, "-n", deployed.namespace, "-l", selector, "-o", "name")


def forgotten(world: World) -> bool | None:
    """Whether the leader knows of as many LLMDeployments as there are: what went without an event has been noticed."""
    lines = world.operators.metrics(world.operators.leader())
    known = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{LLMDEPLOYMENTS}{{"))
    there = len(world.cluster.get("llmdeployments", "--all-namespaces")["items"])
    if known != there:
        raise LookupError(f"the leader knows of {known:.0f} of {there}")
    return True


def operators_calls(cluster: Cluster, since: datetime) -> list[tuple[datetime, str, bool, int]]:
    """The operators' writes, oldest first: when, by which pod, whether of the Lease, and the answer's code."""
    return sorted(
        (
            time_of(event["requestReceivedTimestamp"]),
            event["user"]["extra"][POD_NAME][0],
            event["objectRef"]["resource"] == "leases",
            event["responseStatus"]["code"],
        )
        for event in cluster.audit()
        if event["user"]["username"] == ACCOUNT and time_of(event["requestReceivedTimestamp"]) >= since
    )


def acted_in_turn(cluster: Cluster, since: datetime) -> None:
    """Every write was made by the pod that had last written itself into the Lease."""
    holder = ""
    for at, pod, is_lease, code in operators_calls(cluster, since):
        if is_lease and code < 300:
            holder = pod
        elif not is_lease and code < 300 and holder:
            assert pod == holder, f"{pod} wrote at {at}, when {holder} led"


def test_a_lease_that_a_hand_edits_all_the_while_has_one_holder(world: World) -> None:
    """Nearly every renewal is refused with a 409: the leader renews in between, or stops before another begins."""
    before, began = world.processes(), now()
    world.operators.leader()
    with lease_edited(world.control_plane):
        for number in range(10):
            deploy(world.cluster, PRESSED, f"edit{number}", replicas=0)
            wait(1)
    assert [code for *_, is_lease, code in operators_calls(world.cluster, began) if is_lease and code == 409]
    for number in range(10):
        settled(Deployed(world.cluster, PRESSED, f"edit{number}"))
    acted_in_turn(world.cluster, began)
    assert world.processes() == before
    world.operators.come_to_rest(8)
