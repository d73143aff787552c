"""KEDA decides, a real one, on what a real Prometheus scrapes: up under load, never down for want of data, down through the drain.

And whoever decides next takes over what stands. The HPA that KEDA makes is driven by the cluster's own controller manager.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from streams import RETRIES, Streams
from testbed import keda
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.prometheus import Prometheus, scraping
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

NAMESPACE, NAME, MODEL = "keda-test", "tiny", "pagemill/tiny"
PATIENCE = 600.0
SPEC: dict[str, Any] = {
    "model": MODEL,
    "maxModelLen": 8192,
    "engine": {"kvCacheGiB": 0.1, "maxNumSeqs": 6},
    "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "200m"}},
    "rollout": {"drainTimeoutSeconds": 600},
    "pod": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
}
MOST = 3
LOAD = 16  # streams: more than one replica runs, and than two may have waiting
# That one replica runs, also where they are still counted at a replica that has just gone, and at another before it.
FEW = 2
SHORT = 200  # tokens
WINDOW = 20  # seconds: a few looks of the HPA


@pytest.fixture(scope="module")
def monitored(pagemill: Cluster) -> Iterator[Prometheus]:
    """KEDA and Prometheus beside the cluster."""
    keda.start(pagemill)
    with scraping(pagemill) as prometheus:
        pagemill.kubectl("create", "namespace", NAMESPACE)
        yield prometheus
        remove(pagemill)  # while KEDA is there to take its finalizers off
        pagemill.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    keda.stop(pagemill)


def remove(cluster: Cluster) -> None:
    """And wait for all that it has: a namespace's end alone looks again only after half of the pods' longest grace."""
    kinds = "llmdeployments,scaledobjects,triggerauthentications,horizontalpodautoscalers,pods"
    cluster.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--ignore-not-found")
    gone = ("get", kinds, "-n", NAMESPACE, "-o", "name")
    eventually("that all of it goes", lambda: not cluster.kubectl(*gone).split() or None, PATIENCE)


def scaled(cluster: Cluster, url: str, engine: str = "KEDA", **more: Any) -> Deployed:
    bounds = {"minReplicas": 1, "maxReplicas": MOST, "scaleDown": {"stabilizationSeconds": WINDOW}}
    scaling = {**bounds, "engine": engine, "prometheus": {"url": url}}
    return deploy(cluster, NAMESPACE, NAME, **{**SPEC, "autoscaling": {**scaling, **more}})


def serving(deployed: Deployed) -> list[dict[str, Any]]:
    pods = (pod for pod in deployed.pods() if "deletionTimestamp" not in pod["metadata"])
    ready = {"type": "Ready", "status": "True"}
    return [pod for pod in pods if any(ready.items() <= one.items() for one in pod["status"].get("conditions", ()))]


def await_serving(deployed: Deployed, count: int, asked: int | None = None) -> list[dict[str, Any]]:
    """`asked`: what stays on /scale all the while."""

    def look() -> list[dict[str, Any]]:
        pods = serving(deployed)
        assert asked is None or asked_for(deployed) == asked, "who is on the way out is not asked for anew"
        if len(pods) == len(deployed.pods()) == count:
            return pods
        time.sleep(1)
        raise LookupError(f"{len(pods)} serve: {deployed.get().get('status', {})}")

    return eventually(f"{count} replicas that serve", look, PATIENCE)


def asked_for(deployed: Deployed) -> int | None:
    """What the scaler has written on /scale."""
    found: int | None = deployed.get()["spec"].get("replicas")
    return found


def await_asked_for(deployed: Deployed, count: int) -> None:
    def look() -> bool:
        if (asked := asked_for(deployed)) == count:
            return True
        time.sleep(1)
        raise LookupError(str(asked))

    eventually(f"{count} replicas asked for", look, PATIENCE)


def said_by_keda(deployed: Deployed, kind: str) -> str:
    conditions = deployed.cluster.get("scaledobject", NAME, "-n", NAMESPACE)["status"]["conditions"]
    return next((str(one["status"]) for one in conditions if one["type"] == kind), "")


def falls_back(deployed: Deployed) -> bool:
    """On every trigger: one that asks about silent replicas does so while they load, too."""
    status = deployed.cluster.get("scaledobject", NAME, "-n", NAMESPACE)["status"]
    failures = [one.get("numberOfFailures", 0) for one in status.get("health", {}).values()]
    return len(failures) == len(status["externalMetricNames"]) and min(failures) > 3


def scalers(deployed: Deployed) -> set[str]:
    kinds = "scaledobjects,triggerauthentications,horizontalpodautoscalers"
    return set(deployed.cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name").split())


def begin(deployed: Deployed, replicas: int) -> None:
    """Nobody can read /scale before it has a number: so says the status, and only then KEDA is asked."""
    told = deployed.await_condition("ScalingActive", "False", "NoScaleWritten")
    assert scalers(deployed) == set()
    command = f"kubectl scale llmd {NAME} --replicas={replicas}"
    assert command in told["message"]
    deployed.cluster.kubectl(*command.split()[1:], "-n", NAMESPACE)
    eventually("a ready ScaledObject", lambda: said_by_keda(deployed, "Ready") == "True" or None)


def test_up_under_load_held_without_prometheus_and_down_through_the_drain(
    pagemill: Cluster, monitored: Prometheus
) -> None:
    deployed = scaled(pagemill, monitored.url)
    await_serving(deployed, 1)
    begin(deployed, 1)
    with Streams(deployed.address(), MODEL, count=LOAD, tokens=SHORT) as streams:
        await_serving(deployed, MOST)
        monitored.stop()
    assert (streams.tally.cut, streams.tally.failed) == ([], [])
    eventually("KEDA's fallback", lambda: falls_back(deployed) or None, PATIENCE)
    held = time.monotonic() + 20  # four looks of the HPA
    while time.monotonic() < held:
        assert asked_for(deployed) == MOST
        time.sleep(1)

    with Streams(deployed.address(), MODEL, count=FEW, tokens=SHORT) as streams:
        streams.all_open()
        monitored.start()
        await_asked_for(deployed, 1)
        await_serving(deployed, 1, asked=1)
    assert (streams.tally.cut, streams.tally.failed) == ([], [])
    assert streams.tally.most_in_a_row <= RETRIES


@contextmanager
def watched(deployed: Deployed) -> Iterator[list[int]]:
    """Every number of replicas that its Deployment was given meanwhile, complete after the `with`."""
    command = [deployed.cluster.kubectl_program, "get", "deployment", NAME, "-n", NAMESPACE, "--watch"]
    environment = os.environ | {"KUBECONFIG": str(deployed.cluster.kubeconfig)}
    seen: list[int] = []
    shown = ["-o", r'jsonpath={.spec.replicas}{"\n"}']
    with subprocess.Popen([*command, *shown], env=environment, stdout=subprocess.PIPE, text=True) as watch:
        try:
            yield seen
        finally:
            watch.terminate()
        assert watch.stdout is not None
        seen += [int(line) for line in watch.stdout.read().split()]


def test_whoever_decides_takes_over_what_stands(pagemill: Cluster, monitored: Prometheus) -> None:
    """Operator, KEDA, an HPA's /scale, a fixed number: never through one, and nothing is left of the one before."""
    remove(pagemill)
    deployed = scaled(pagemill, monitored.url, "Operator")
    await_serving(deployed, 1)
    with Streams(deployed.address(), MODEL, count=LOAD, tokens=SHORT) as streams:
        await_serving(deployed, MOST)
        with watched(deployed) as seen:
            scaled(pagemill, monitored.url, "KEDA")
            begin(deployed, MOST)
            eventually("KEDA's HPA", lambda: "keda-hpa-tiny" in " ".join(scalers(deployed)) or None)
            deployed.await_condition("ScalingActive", "True", "OutsideScaler")
            scaled(pagemill, monitored.url, "External")
            eventually("that KEDA's objects go", lambda: not scalers(deployed) or None)
            assert asked_for(deployed) == MOST
            pagemill.kubectl("scale", f"llmd/{NAME}", "-n", NAMESPACE, "--replicas=2")
            await_serving(deployed, 2)
            deploy(pagemill, NAMESPACE, NAME, **{**SPEC, "replicas": MOST})
            await_serving(deployed, MOST)
        assert set(seen) == {2, MOST}
    assert (streams.tally.cut, streams.tally.failed) == ([], [])


def test_it_sleeps_and_what_waits_at_the_gateway_wakes_it(pagemill: Cluster, monitored: Prometheus) -> None:
    remove(pagemill)
    deployed = scaled(pagemill, monitored.url, minReplicas=0)
    await_serving(deployed, 1)
    begin(deployed, 1)
    await_asked_for(deployed, 0)
    await_serving(deployed, 0)
    still = time.monotonic() + 2 * WINDOW
    while time.monotonic() < still:  # nobody is scraped, which must be no error: KEDA's fallback would wake it
        assert asked_for(deployed) == 0
        time.sleep(1)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    answer = httpx.post(f"{deployed.address()}/v1/completions", json=body, timeout=PATIENCE)
    assert (answer.status_code, asked_for(deployed)) == (200, 1), answer.text
