"""A way through a Gateway on a real API server: the real HTTPRoute; InferencePool and PodMonitor by the fields that are published.

No gateway runs here: what one makes of the objects is its own affair. That they are made, accepted, kept and taken back is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.crds import HTTP_ROUTE, INFERENCE_POOL, POD_MONITOR, install_crd, remove_crd
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

EDGE = {"parentRef": {"name": "edge", "namespace": "infra", "sectionName": "https"}, "hostnames": ["chat.example.com"]}
PICKED = {**EDGE, "endpointPicker": {"name": "picker"}}
# Paused: nothing of this needs a pod.
PAUSED: dict[str, Any] = {"suspend": True, "replicas": 2}


@pytest.fixture
def crds(pagemill: Cluster) -> Iterator[Cluster]:
    for crd in (HTTP_ROUTE, INFERENCE_POOL, POD_MONITOR):
        install_crd(pagemill, crd)
    try:
        yield pagemill
    finally:
        for crd in (HTTP_ROUTE, INFERENCE_POOL, POD_MONITOR):
            remove_crd(pagemill, crd)


def live(deployed: Deployed, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = eventually(
        f"a {kind}", lambda: deployed.cluster.get(kind, deployed.name, "-n", deployed.namespace)
    )
    return found


def await_gone(deployed: Deployed, *kinds: str) -> None:
    def look() -> bool:
        if left := deployed.cluster.kubectl("get", ",".join(kinds), "-n", deployed.namespace, "-o", "name").split():
            raise LookupError(" ".join(left))
        return True

    eventually(f"no {' or '.join(kinds)}", look)


def test_without_the_crds_it_is_said_and_the_rest_serves(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(pagemill, namespace, "routed", gateway=PICKED, **PAUSED)
    degraded = deployed.await_condition("Degraded", "True", "GatewayUnavailable")
    assert "HTTPRoute" in degraded["message"]
    assert "InferencePool" in degraded["message"]
    assert "install its CRD" in degraded["message"]
    assert deployed.await_condition("Ready", "True")["reason"] == "ScaledToZero"
    assert live(deployed, "service")


def test_when_the_crds_come_the_route_is_made(pagemill: Cluster, namespace: str, crds: Cluster) -> None:
    """Nobody tells the operator that a CRD was installed: it asks again each minute while something was refused."""
    deployed = deploy(pagemill, namespace, "routed", gateway=PICKED, **PAUSED)
    deployed.await_condition("Degraded", "False", seconds=600)
    assert live(deployed, "httproute")


def test_a_route_to_the_service(crds: Cluster, namespace: str) -> None:
    deployed = deploy(crds, namespace, "routed", gateway=EDGE, service={"port": 80}, **PAUSED)
    route = live(deployed, "httproute")["spec"]
    assert route["hostnames"] == ["chat.example.com"]
    (parent,) = route["parentRefs"]
    assert (parent["kind"], parent["name"], parent["namespace"], parent["sectionName"]) == (
        "Gateway",
        "edge",
        "infra",
        "https",
    )
    (backend,) = route["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"], backend["port"]) == ("Service", "routed", 80)
    deployed.await_condition("Degraded", "False")


def test_a_pool_that_a_picker_can_use_and_back(crds: Cluster, namespace: str) -> None:
    deployed = deploy(crds, namespace, "picked", gateway=PICKED, **PAUSED)
    pool = live(deployed, "inferencepool")
    assert pool["spec"]["endpointPickerRef"] == {
        "group": "",
        "kind": "Service",
        "name": "picker",
        "port": {"number": 9002},
        "failureMode": "FailOpen",
    }
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    (owner,) = pool["metadata"]["ownerReferences"]
    assert owner["uid"] == deployed.get()["metadata"]["uid"]
    (backend,) = live(deployed, "httproute")["spec"]["rules"][0]["backendRefs"]
    assert (backend["group"], backend["kind"]) == ("inference.networking.k8s.io", "InferencePool")
    deployed.await_condition("Degraded", "False")
    deploy(crds, namespace, "picked", **PAUSED)
    await_gone(deployed, "inferencepool", "httproute")


def test_what_is_as_wanted_is_not_written_again_nor_deleted_twice(crds: Cluster, namespace: str) -> None:
    """The API server's defaults are no drift, and what is only listed must be forgotten with its deletion."""
    wanted = {"networkPolicy": {"enabled": True}, "monitoring": {"podMonitor": True}, "gateway": PICKED}
    deployed = deploy(crds, namespace, "quiet", **wanted, **PAUSED)
    for kind in ("networkpolicy", "podmonitor", "inferencepool", "httproute"):
        live(deployed, kind)
    deployed.await_condition("Degraded", "False")

    def writes(number: int) -> list[dict[str, Any]]:
        """What the operator writes in the namespace while an event makes it look again."""
        before = len(crds.audit())
        crds.kubectl(
            "annotate", "service", "quiet", "-n", namespace, "--overwrite", f"tests.pagemill.dev/look={number}"
        )
        marker = f"marker-{namespace}-{number}"
        deploy(crds, namespace, marker, **PAUSED)  # has been reconciled once its Service is there
        live(Deployed(crds, namespace, marker), "service")
        written = [entry for entry in crds.audit()[before:] if "operator" in entry["user"]["username"]]
        return [entry for entry in written if entry["objectRef"].get("name", "").startswith("quiet")]

    for number in range(3):
        assert writes(number) == []
    deploy(crds, namespace, "quiet", **PAUSED)
    await_gone(deployed, "networkpolicy", "podmonitor", "inferencepool", "httproute")
    deployed.await_condition("Degraded", "False")
    for number in range(3, 5):
        assert writes(number) == []
