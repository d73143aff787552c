"""What runs is not lost: in a rollout that fails, in a scale-down, and whatever stops a replica, each stream ends whole.

Streams go straight to pods here, so that it is known whose they are; test_streams has many of them through the Service.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from streams import RETRIES, Streams
from testbed import pace
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

from pagemill_operator.labels import DRAIN_ANNOTATION

pytestmark = pytest.mark.cluster

NAMESPACE, NAME = "lossless", "tiny"
MODEL = "pagemill/tiny"
PATIENCE = 600.0
ENGINE: dict[str, Any] = {"kvCacheGiB": 0.1}
# Seconds that a step takes at least, so that a stream is open for as long as a test looks, on any machine; then it is let run.
STEP = 0.05
SPEC: dict[str, Any] = {
    "model": MODEL,
    "replicas": 3,
    "maxModelLen": 8192,
    "engine": ENGINE,
    "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "200m"}},
    "rollout": {"drainTimeoutSeconds": 600},
    "pod": pace.paced(STEP, {"name": "OMP_NUM_THREADS", "value": "1"}),
}
LONG = 5000  # tokens of a stream that outlasts two scale-downs: four minutes at that pace
MANY = 6  # of those at once
SHORT = 3000  # that outlasts a lame duck's time: two and a half minutes


@pytest.fixture(scope="module")
def deployed(pagemill: Cluster) -> Iterator[Deployed]:
    pagemill.kubectl("create", "namespace", NAMESPACE)
    pagemill.apply(pace.config_map(NAMESPACE), NAMESPACE)
    yield deploy(pagemill, NAMESPACE, NAME, **SPEC)
    pagemill.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def scale(deployed: Deployed, replicas: int) -> None:
    deployed.cluster.kubectl("scale", f"llmd/{NAME}", "-n", NAMESPACE, f"--replicas={replicas}")


def settled(deployed: Deployed, replicas: int) -> list[dict[str, Any]]:
    """So many replicas of SPEC, all of which answer, and nobody on the way out: whatever was there before."""
    deploy(deployed.cluster, NAMESPACE, NAME, **{**SPEC, "replicas": replicas})
    deployed.await_condition("Progressing", "False", "Settled", seconds=PATIENCE)

    def look() -> list[dict[str, Any]] | None:
        pods = deployed.pods()
        return pods if len(pods) == replicas and all(serves(pod) for pod in pods) else None

    return eventually(f"{replicas} replicas that serve", look, PATIENCE)


def serves(pod: dict[str, Any]) -> bool:
    ready = [one["status"] for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
    return ready == ["True"] and not leaves(pod)


def leaves(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def life(pod: dict[str, Any]) -> tuple[str, str]:
    """The pod and its container: another one is another process."""
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0].get("containerID", "")


def find(deployed: Deployed, pod: dict[str, Any]) -> dict[str, Any] | None:
    """As it is now; None when it is gone."""
    return next((one for one in deployed.pods() if one["metadata"]["uid"] == pod["metadata"]["uid"]), None)


def is_let_go(deployed: Deployed, pod: dict[str, Any]) -> bool:
    """Kubernetes was told that it may go."""
    found = find(deployed, pod)
    return found is None or leaves(found)


def is_marked(deployed: Deployed, pod: dict[str, Any]) -> bool:
    """The operator means to let it go."""
    found = find(deployed, pod)
    return found is None or DRAIN_ANNOTATION in found["metadata"].get("annotations", {})


def at(pod: dict[str, Any]) -> str:
    return f"http://{pod['status']['podIP']}:8000"


def ask(address: str) -> httpx.Response:
    """For one token, over a connection of its own."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    return httpx.post(f"{address}/v1/completions", json=body, timeout=PATIENCE)


def turns_away(pod: dict[str, Any]) -> bool:
    """New requests, as one does that drains; whether it takes them meanwhile."""
    answer = ask(at(pod))
    assert answer.status_code == 200 or (answer.status_code == 503 and "retry-after" in answer.headers), answer.text
    return answer.status_code == 503


def ended_whole(streams: Streams, count: int) -> None:
    streams.until("the last stream's end", lambda tally: tally.finished >= count)
    assert (streams.tally.cut, streams.tally.failed, streams.tally.finished) == ([], [], count)


def test_a_rollout_that_fails_costs_one_replica_and_no_stream(deployed: Deployed) -> None:
    """The preflight looks at the model and passes; what the server is told it does not know. The first new replica is the last."""
    cluster = deployed.cluster
    before = {life(pod) for pod in settled(deployed, 3)}
    with Streams(deployed.address(), MODEL, count=6, tokens=100) as streams:
        streams.all_open()
        deploy(cluster, NAMESPACE, NAME, **{**SPEC, "engine": {**ENGINE, "extraArgs": ["--no-such-flag"]}})
        told = deployed.await_condition("Progressing", "False", "RolloutFailed", seconds=PATIENCE)
        assert "InvalidConfiguration: " in told["message"]
        assert "2 replicas of the former spec serve" in told["message"]
        kept = {life(pod) for pod in deployed.pods() if serves(pod)}
        assert len(kept) == 2
        assert kept < before
        finished = streams.tally.finished
        for _ in range(20):
            pods = [pod for pod in deployed.pods() if not leaves(pod)]
            assert {life(pod) for pod in pods if serves(pod)} == kept, "the next one is left alone"
            assert len(pods) == 3
            assert deployed.condition("Progressing")["reason"] == "RolloutFailed", "and it goes on to say so"
            time.sleep(1)
        assert deployed.condition("Ready")["reason"] == "RolloutFailed"
        assert deployed.condition("Degraded")["reason"] == "InvalidConfiguration"
        assert deployed.get()["status"]["rollout"] == {"pendingFields": ["engine.extraArgs"], "class": "restart"}
        streams.until("answers of the two", lambda tally: tally.finished >= finished + 10)
        deploy(cluster, NAMESPACE, NAME, **SPEC)
        deployed.await_condition("Ready", "True", "Serving", seconds=PATIENCE)
        assert kept < {life(pod) for pod in settled(deployed, 3)}, "those that kept serving are not started anew"
    assert (streams.tally.cut, streams.tally.failed) == ([], [])
    assert streams.tally.most_in_a_row <= RETRIES


def test_those_with_the_least_to_finish_go_and_finish_it(deployed: Deployed) -> None:
    """kthena#1589, gpustack#6059. Of equals the youngest go first: here it is the one with the most to finish."""
    pods = settled(deployed, 3)
    busiest, less_busy, idle = sorted(pods, key=lambda pod: (-born(pod), pod["metadata"]["name"]))
    with (
        Streams(at(busiest), MODEL, count=2 * MANY, tokens=LONG, once=True) as more,
        Streams(at(less_busy), MODEL, count=MANY, tokens=LONG, once=True) as less,
    ):
        more.all_open()
        less.all_open()
        scale(deployed, 2)
        eventually("that somebody goes", lambda: any(is_let_go(deployed, pod) for pod in pods) or None, PATIENCE)
        assert is_let_go(deployed, idle)
        assert not is_marked(deployed, busiest)
        assert not is_marked(deployed, less_busy)
        assert (more.tally.open, less.tally.open) == (2 * MANY, MANY), "they must outlast this"

        scale(deployed, 1)
        eventually("that the other one is to go", lambda: is_marked(deployed, less_busy) or None, PATIENCE)
        eventually("that it takes nothing new", lambda: turns_away(less_busy) or None, PATIENCE)
        assert less.tally.open == MANY, "they must outlast this"
        pace.set_pace(deployed.cluster, less_busy, 0)
        while less.tally.open:
            let_go = is_let_go(deployed, less_busy)
            assert not let_go or not less.tally.open, "before its streams have ended"
            time.sleep(0.2)
        ended_whole(less, MANY)
        eventually("that it goes", lambda: is_let_go(deployed, less_busy) or None, PATIENCE)
        assert not is_marked(deployed, busiest)
        pace.set_pace(deployed.cluster, busiest, 0)
        ended_whole(more, 2 * MANY)
    (last,) = settled(deployed, 1)
    assert life(last) == life(busiest)


def born(pod: dict[str, Any]) -> float:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def evict(deployed: Deployed, pod: str) -> None:
    """By the API that `kubectl drain` uses; a budget that does not allow it yet may do so soon."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    order = ("create", "--raw", path, "-f", "-")
    eventually("an eviction", lambda: deployed.cluster.kubectl(*order, stdin=json.dumps(eviction)))


def delete(deployed: Deployed, pod: str) -> None:
    deployed.cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("stop", [evict, delete])
def test_whatever_stops_a_replica_its_streams_end_whole(
    stop: Callable[[Deployed, str], None], deployed: Deployed
) -> None:
    """And it goes the one way: still serving, with news to come again elsewhere; then 503; then what runs is waited for."""
    pod, other = settled(deployed, 2)
    with Streams(at(pod), MODEL, count=MANY, tokens=SHORT, once=True) as streams:
        streams.all_open()
        stop(deployed, pod["metadata"]["name"])
        assert is_let_go(deployed, pod)
        answers: list[httpx.Response] = []

        def refused() -> bool | None:
            answers.append(ask(at(pod)))
            return answers[-1].status_code == 503 or None

        eventually("that it takes nothing new", refused, PATIENCE)
        assert streams.tally.open == MANY, "they must outlast this"
        assert "retry-after" in answers[-1].headers
        served = answers[:-1]
        assert {answer.status_code for answer in served} == {200}
        assert "close" in {answer.headers.get("connection", "").lower() for answer in served}
        pace.set_pace(deployed.cluster, pod, 0)
        ended_whole(streams, MANY)
    pods = settled(deployed, 2)
    assert life(other) in {life(one) for one in pods}
    assert life(pod) not in {life(one) for one in pods}
