"""Through the gateway on the real cluster: a model that sleeps and is woken without an error, requests that spread over replicas.

The clients keep their connections, as the official one does: kube-proxy alone would leave each with the replica that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from testbed import pace
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

from pagemill.endpoints import METRICS_PATH, SERVING_PORT
from pagemill.metrics import RUNNING
from pagemill_operator.labels import GATEWAY_NAME, NAME_LABEL

pytestmark = pytest.mark.cluster

NAMESPACE = "asleep"
MODEL = "pagemill/tiny"
PATIENCE = 600.0
CLIENTS = 32
SMALL: dict[str, Any] = {
    "model": MODEL,
    "resources": {"requests": {"cpu": "50m"}},
    "rollout": {"lameDuckSeconds": 1, "drainTimeoutSeconds": 60},
}
SLEEPS = {"minReplicas": 0, "maxReplicas": 2, "scaleDown": {"stabilizationSeconds": 5}}


@pytest.fixture(scope="module")
def namespace(pagemill: Cluster) -> Iterator[str]:
    pagemill.kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    pagemill.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def sleeper(pagemill: Cluster, namespace: str) -> Deployed:
    deployed = deploy(pagemill, namespace, "sleeper", **SMALL, autoscaling=SLEEPS)
    deployed.await_condition("Ready", "True", "ScaledToZero", seconds=PATIENCE)
    return deployed


def leads_through(deployed: Deployed) -> bool:
    service = deployed.cluster.read(f"/api/v1/namespaces/{NAMESPACE}/services/{deployed.name}")["spec"]
    return bool(service["selector"][NAME_LABEL] == GATEWAY_NAME)


def held_to(deployed: Deployed) -> int:
    found = deployed.cluster.read(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployed.name}")
    return int(found["spec"]["replicas"])


def test_it_starts_once_and_then_sleeps_and_says_so(sleeper: Deployed) -> None:
    assert "the next request wakes it" in sleeper.condition("Ready")["message"]
    assert sleeper.condition("ScalingActive")["status"] == "True"
    scaling = sleeper.get()["status"]["autoscaling"]
    assert (scaling["desired"], scaling["decision"]) == (0, "Down")
    assert scaling["reason"].startswith("Idle:")
    eventually("no pod", lambda: not sleeper.pods() or None, PATIENCE)
    assert leads_through(sleeper)


def test_neither_probes_nor_lists_wake_it(sleeper: Deployed) -> None:
    sleeper.await_condition("Progressing", "False", "ScaledToZero", seconds=PATIENCE)
    sleeper.await_condition("Draining", "False", seconds=PATIENCE)  # nobody is left of whom anything could be told
    before = sleeper.get()["status"]
    with httpx.Client(base_url=sleeper.address(), timeout=PATIENCE, trust_env=False) as asking:
        for _ in range(20):
            assert [model["id"] for model in asking.get("/v1/models").json()["data"]] == [MODEL]
            assert asking.get("/health").status_code == 200
            assert asking.get("/ready").status_code == 503
            assert asking.get(METRICS_PATH).status_code == 503
            threading.Event().wait(0.3)
    assert held_to(sleeper) == 0
    assert sleeper.get()["status"] == before


def test_requests_wake_it_and_none_of_their_clients_sees_an_error(sleeper: Deployed) -> None:
    """Streams and whole answers, as official clients send them, without a retry."""
    client = openai.OpenAI(base_url=f"{sleeper.address()}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def whole() -> str:
        return client.completions.create(model=MODEL, prompt="x", max_tokens=4).choices[0].finish_reason

    def streamed() -> str:
        stream = client.completions.create(model=MODEL, prompt="x", max_tokens=4, stream=True)
        return [chunk.choices[0].finish_reason for chunk in stream][-1]

    with client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(one) for one in (whole, streamed) * 4]
        assert [one.result(PATIENCE) for one in asked] == ["length"] * 8
    events = sleeper.cluster.get("events", "-n", NAMESPACE)["items"]
    woken = [one for one in events if one["reason"] == "ScaledUp" and one["involvedObject"]["name"] == "sleeper"]
    assert any("Wake:" in one["message"] for one in woken)
    sleeper.await_condition("Ready", "True", "ScaledToZero", seconds=PATIENCE)


class Keeping:
    """Clients that keep their connection and ask for one answer after another, until the end of the `with`."""

    def __init__(self, address: str) -> None:
        self.failed: list[str] = []
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> Keeping:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _ask(self) -> None:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "ignore_eos": True}
        with httpx.Client(base_url=self._address, timeout=PATIENCE, trust_env=False) as client:
            while not self._over.is_set():
                try:
                    answer = client.post("/v1/completions", json=body)
                except httpx.HTTPError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                else:
                    if answer.status_code != 200:
                        self.failed.append(answer.text[:200])


def running(deployed: Deployed) -> list[float]:
    """Sequences that each replica runs, by its own word."""
    found = []
    for pod in deployed.pods():
        url = f"http://{pod['status']['podIP']}:{SERVING_PORT}{METRICS_PATH}"
        lines = httpx.get(url, timeout=30, trust_env=False).text.splitlines()
        found.append(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{RUNNING}{{")))
    return found


def spread(deployed: Deployed) -> list[float] | None:
    """What three replicas run, on average over some looks, where none is further than a fifth from the mean."""
    looks = [running(deployed) for _ in range(10)]
    if any(len(look) != 3 for look in looks):
        raise LookupError(f"replicas: {len(looks[-1])}")
    means = [sum(look[place] for look in looks) / len(looks) for place in range(3)]
    mean = sum(means) / 3
    if mean > 0 and all(abs(one - mean) <= 0.2 * mean for one in means):
        return means
    raise LookupError(f"running: {means}")


def test_least_load_spreads_kept_connections_over_new_replicas_within_a_minute(
    pagemill: Cluster, namespace: str
) -> None:
    # An answer takes a second at least: so the clients, which share this machine, are not what bounds it, and all of them are seen.
    pagemill.apply(pace.config_map(namespace), namespace)
    deployed = deploy(pagemill, namespace, "spread", **SMALL, pod=pace.paced(0.01), replicas=1, routing="leastLoad")
    deployed.await_condition("Ready", "True", "Serving", seconds=PATIENCE)
    eventually("a Service that leads to the gateway", lambda: leads_through(deployed) or None, PATIENCE)
    with Keeping(deployed.address()) as keeping:
        eventually("all at the one replica", lambda: sum(running(deployed)) >= CLIENTS / 2 or None, PATIENCE)
        pagemill.kubectl("scale", "llmd/spread", "-n", namespace, "--replicas=3")
        eventually("three replicas", lambda: deployed.get()["status"]["ready"] == "3/3" or None, PATIENCE)
        eventually("an even spread", lambda: spread(deployed), seconds=60)
    assert keeping.failed == []
