"""A namespace's gateway on the real cluster: it comes with the first who needs it, cuts nothing, and goes with the last.

Streams and requests go through the deployment's Service, each over a connection of its own, so that one that leads to nobody is
seen at once.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from streams import Streams
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.operators import Operators
from testbed.ready import eventually
from testbed.release import NAMESPACE as SYSTEM

from pagemill_operator.gateway.metrics import REQUESTS
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT
from pagemill_operator.labels import GATEWAY_NAME, NAME_LABEL

pytestmark = pytest.mark.cluster

NAMESPACE = "through"
MODEL = "pagemill/tiny"
PATIENCE = 600.0
SPEC: dict[str, Any] = {
    "model": MODEL,
    "replicas": 2,
    "routing": "leastLoad",
    "resources": {"requests": {"cpu": "50m"}},
    "rollout": {"lameDuckSeconds": 3, "drainTimeoutSeconds": 60},
}
KINDS = "deployment,service,serviceaccount,role,rolebinding,poddisruptionbudget"


@pytest.fixture(scope="module")
def deployed(pagemill: Cluster) -> Iterator[Deployed]:
    pagemill.kubectl("create", "namespace", NAMESPACE)
    yield deploy(pagemill, NAMESPACE, "tiny", **SPEC)
    pagemill.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def led_through(deployed: Deployed) -> bool:
    service = deployed.cluster.get("service", deployed.name, "-n", NAMESPACE)["spec"]
    return bool(service["selector"][NAME_LABEL] == GATEWAY_NAME)


def gateways(cluster: Cluster) -> list[dict[str, Any]]:
    """Pods that take requests."""
    pods = cluster.get("pods", "-n", NAMESPACE, "-l", f"{NAME_LABEL}={GATEWAY_NAME}")["items"]
    return [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def two(cluster: Cluster) -> list[dict[str, Any]] | None:
    found = gateways(cluster)
    return found if len(found) == 2 else None


def through(deployed: Deployed) -> list[dict[str, Any]]:
    """Its Service leads to two gateways."""
    eventually("a Service that leads to the gateway", lambda: led_through(deployed) or None, PATIENCE)
    return eventually("two gateways", lambda: two(deployed.cluster), PATIENCE)


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def answered(pod: dict[str, Any]) -> float:
    """How many requests a gateway says that it has had."""
    url = f"http://{pod['status']['podIP']}:{GATEWAY_ADMIN_PORT}/metrics"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{REQUESTS}{{"))


def ask(deployed: Deployed) -> httpx.Response:
    """For one token, over a connection of its own."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    return httpx.post(f"{deployed.address()}/v1/completions", json=body, timeout=PATIENCE, trust_env=False)


def test_requests_go_through_two_gateways_to_the_replicas(deployed: Deployed) -> None:
    deployed.await_condition("Ready", "True", "Serving", seconds=PATIENCE)
    pods = through(deployed)

    def asked() -> bool | None:
        answer = ask(deployed)
        assert answer.status_code == 200, answer.text
        return all(answered(pod) for pod in pods) or None

    eventually("requests at both gateways", asked)
    assert deployed.condition("Degraded")["status"] == "False"
    assert deployed.get()["status"]["url"] == f"http://tiny.{NAMESPACE}.svc:8000/v1"


def test_a_second_deployment_joins_the_same_gateway(deployed: Deployed) -> None:
    before = uids(through(deployed))
    other = deploy(deployed.cluster, NAMESPACE, "other", **{**SPEC, "replicas": 1, "routing": "prefix"})
    assert uids(through(other)) == before
    other.await_condition("Ready", "True", "Serving", seconds=PATIENCE)
    assert ask(other).status_code == 200
    deployed.cluster.kubectl("delete", "llmd", "other", "-n", NAMESPACE)
    eventually(
        "one owner less",
        lambda: owners(deployed.cluster) == ["tiny"] or None,
    )
    assert uids(through(deployed)) == before


def owners(cluster: Cluster) -> list[str]:
    metadata = cluster.get("deployment", GATEWAY_NAME, "-n", NAMESPACE)["metadata"]
    return [owner["name"] for owner in metadata["ownerReferences"]]


def test_neither_an_operator_that_restarts_nor_a_gateway_that_goes_cuts_a_stream(deployed: Deployed) -> None:
    before, operators = through(deployed), Operators(deployed.cluster)
    holder = operators.holder()
    with Streams(deployed.address(), MODEL, count=4, tokens=200) as streams:
        streams.all_open()
        deployed.cluster.kubectl("delete", "pod", operators.leader(), "-n", SYSTEM, "--wait=false")
        operators.await_other(holder)
        assert uids(gateways(deployed.cluster)) == uids(before)
        first = before[0]["metadata"]["name"]
        deployed.cluster.kubectl("delete", "pod", first, "-n", NAMESPACE, "--wait=false")
        eventually(
            "another gateway in its place", lambda: uids(two(deployed.cluster) or before) != uids(before) or None
        )
        finished = streams.tally.finished
        streams.until("answers after that", lambda tally: tally.finished >= finished + 4)
    assert (streams.tally.cut, streams.tally.failed) == ([], [])


def test_a_gateway_that_is_killed_leaves_the_other_one_serving(deployed: Deployed) -> None:
    killed, other = through(deployed)
    order = ("delete", "pod", killed["metadata"]["name"], "-n", NAMESPACE, "--grace-period=0", "--force")
    deployed.cluster.kubectl(*order)

    def all_answered() -> bool | None:
        try:
            return all(ask(deployed).status_code == 200 for _ in range(10)) or None
        except httpx.HTTPError as error:  # the killed one's, for as long as the Service leads there
            raise LookupError(f"{type(error).__name__}: {error}") from error

    eventually("answers to ten in a row", all_answered)
    assert other["metadata"]["uid"] in uids(through(deployed))


class Asking:
    """One request after another until the end of the `with`; `wrong` is what went wrong."""

    def __init__(self, deployed: Deployed) -> None:
        self.answers, self.wrong = 0, list[str]()
        self._address = deployed.address()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _ask(self) -> None:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        while not self._over.is_set():
            try:
                answer = httpx.post(f"{self._address}/v1/completions", json=body, timeout=60, trust_env=False)
            except httpx.HTTPError as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            else:
                self.answers += answer.status_code == 200
                if answer.status_code != 200:
                    self.wrong.append(f"{answer.status_code}: {answer.text[:200]}")


def test_whoever_turns_from_the_gateway_loses_no_request_and_the_gateway_goes(deployed: Deployed) -> None:
    through(deployed)
    cluster = deployed.cluster
    with Asking(deployed) as asking:
        deploy(cluster, NAMESPACE, "tiny", **{**SPEC, "routing": "service"})
        eventually("a Service that leads to the replicas", lambda: not led_through(deployed) or None)
        eventually("nothing left of the gateway", lambda: named(cluster) == ["tiny"] or None, PATIENCE)
        before = asking.answers
        eventually("more answers", lambda: asking.answers > before + 5 or None)
    assert asking.wrong == []
    deployed.await_condition("Ready", "True", "Serving")


def named(cluster: Cluster) -> list[str]:
    """Of all that the operator has made here, by name."""
    ours = "app.kubernetes.io/managed-by=pagemill-operator"
    found = cluster.get(KINDS, "-n", NAMESPACE, "-l", ours)["items"]
    return sorted({found["metadata"]["name"] for found in found})


def test_the_last_one_takes_all_of_it_along(deployed: Deployed) -> None:
    deploy(deployed.cluster, NAMESPACE, "tiny", **SPEC)
    through(deployed)
    deployed.cluster.kubectl("delete", "llmd", "tiny", "-n", NAMESPACE)
    eventually("that nothing is left", lambda: not named(deployed.cluster) or None, PATIENCE)
    pods = f"{NAME_LABEL}={GATEWAY_NAME}"
    everything = lambda: deployed.cluster.get("pods", "-n", NAMESPACE, "-l", pods)["items"]  # noqa: E731
    eventually("the end of its pods", lambda: not everything() or None, PATIENCE)
