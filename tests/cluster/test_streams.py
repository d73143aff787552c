"""200 open streams over all that a deployment goes through: not one is cut short, and no new request is turned away for good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from streams import RETRIES, Streams
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny"
COUNT = 200
SPARE = 20  # clients whose stream has ended and whose next has not begun: with fewer a fast engine never has all open at once
TOKENS = 900  # a stream: long beside the time between two
SECONDS = 600.0  # that a change may take where two cores serve 200 streams and run the cluster besides
# Of two cores a replica gets half of one, so that what starts, the kubelet's probes and the cluster itself have theirs.
SPEC: dict[str, Any] = {
    "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "500m"}},
    "model": MODEL,
    "replicas": 3,
    "maxModelLen": 1024,
    "engine": {"kvCacheGiB": 0.1, "maxNumSeqs": 256},
    "rollout": {"drainTimeoutSeconds": 600},
    "pod": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
}


@pytest.fixture(scope="module")
def deployed(pagemill: Cluster) -> Iterator[Deployed]:
    """Three replicas that serve."""
    pagemill.kubectl("create", "namespace", "streams")
    made = deploy(pagemill, "streams", "streams", **SPEC)
    made.await_condition("Ready", "True", seconds=SECONDS)
    yield made
    pagemill.kubectl("delete", "namespace", "streams", "--wait=false")


@pytest.fixture(scope="module")
def streams(deployed: Deployed) -> Iterator[Streams]:
    """All open, from the first test to the last one's end."""
    with Streams(deployed.address(), MODEL, count=COUNT + SPARE, tokens=TOKENS) as running:
        running.all_open(COUNT)
        yield running


@pytest.fixture(autouse=True)
def not_one_cut_short(streams: Streams) -> Iterator[None]:
    """Whatever the test does."""
    streams.all_open(COUNT)
    before = streams.tally.finished
    yield
    streams.until("enough streams finish", lambda tally: tally.finished >= before + COUNT)
    assert (streams.tally.cut, streams.tally.failed) == ([], [])
    assert streams.tally.most_in_a_row <= RETRIES


def change(deployed: Deployed, **spec: Any) -> None:
    patch = json.dumps({"spec": spec})
    deployed.cluster.kubectl("patch", "llmd", deployed.name, "-n", deployed.namespace, "--type=merge", "-p", patch)


def settle(deployed: Deployed) -> None:
    """The newest spec serves, and nobody of the former is left."""
    deployed.await_condition("Progressing", "False", "Settled", seconds=SECONDS)
    deployed.await_condition("Draining", "False", seconds=SECONDS)


def containers(deployed: Deployed) -> dict[str, str]:
    """Each pod's container: another id is another process."""
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"] for pod in deployed.pods()}


def operator_pods(cluster: Cluster) -> list[dict[str, Any]]:
    found = cluster.get("pods", "-n", NAMESPACE)["items"]
    return [pod for pod in found if pod["metadata"]["name"].startswith(OPERATOR)]


def kill_operators(cluster: Cluster) -> None:
    """SIGKILL, each of them."""
    for pod in operator_pods(cluster):
        cluster.kill_container(pod["status"]["containerStatuses"][0]["containerID"])


def test_a_hot_change_leaves_every_process_and_its_streams(deployed: Deployed) -> None:
    before = containers(deployed)
    change(deployed, schedulingPolicy="fair", scheduling={"weights": {"a": 2}})
    eventually("the policy on every replica", lambda: "rollout" not in deployed.get()["status"] or None, SECONDS)
    deployed.await_condition("Progressing", "False", "Settled", seconds=SECONDS)
    assert containers(deployed) == before


def test_a_new_operator_leaves_them_too(deployed: Deployed) -> None:
    """kserve#5085, aibrix#2041: an upgrade of the operator rolls no model."""
    before, cluster = containers(deployed), deployed.cluster
    cluster.kubectl("rollout", "restart", f"deployment/{OPERATOR}", "-n", NAMESPACE)
    cluster.kubectl("rollout", "status", f"deployment/{OPERATOR}", "-n", NAMESPACE, "--timeout=600s")
    change(deployed, scheduling={"maxQueuedRequests": 100_000})
    eventually("that the new one acts", lambda: "rollout" not in deployed.get()["status"] or None, SECONDS)
    assert containers(deployed) == before


def test_a_rolling_update_one_by_one(deployed: Deployed) -> None:
    """LLMKube#856, kuberay#1559 and #1565: no rollout kills what runs. LLMKube#192, airunway#400: nor does it wait for a place that
    an old replica holds, for each of those stops before its successor starts."""
    before = containers(deployed)
    change(deployed, maxModelLen=2048)
    deployed.await_condition("Progressing", "True")
    settle(deployed)
    assert not set(containers(deployed).values()) & set(before.values())
    assert len(deployed.pods()) == 3


def test_a_scale_down_in_the_middle_of_which_the_operator_is_killed(deployed: Deployed) -> None:
    """kthena#1589, gpustack#6059: who is to go finishes first, also when nobody is there to watch."""
    deployed.cluster.kubectl("scale", "llmd/streams", "-n", deployed.namespace, "--replicas=1")
    deployed.await_condition("Draining", "True", "ReplicasLeave")
    kill_operators(deployed.cluster)
    settle(deployed)
    assert len(deployed.pods()) == 1


def test_an_update_of_a_single_replica_by_a_surge(deployed: Deployed) -> None:
    """vllm#24885, kserve's pull requests 5485 and 5496: a SIGTERM drops no stream, and the endpoints still lead to somebody."""
    change(deployed, rollout={"strategy": "Surge"}, maxModelLen=1024)
    deployed.await_condition("Progressing", "True")
    settle(deployed)
    assert len(deployed.pods()) == 1
