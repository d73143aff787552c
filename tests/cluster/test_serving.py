"""The whole path on a real Kubernetes: a manifest is applied and a model answers; a death is told and mended."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from testbed.cluster import Cluster
from testbed.deployments import LABEL, MODEL, Deployed
from testbed.images import REPOSITORY
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR

pytestmark = pytest.mark.cluster

EXAMPLE = REPOSITORY / "examples" / "smollm2.yaml"
OPERATOR_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
MADE = "deployments,replicasets,pods,services,endpointslices,serviceaccounts,configmaps,secrets,persistentvolumeclaims,jobs"


@pytest.fixture(scope="module")
def smollm2(pagemill: Cluster) -> Deployed:
    """The example, applied as a user does, and Ready."""
    pagemill.kubectl("create", "namespace", "serving")
    pagemill.kubectl("apply", "-n", "serving", "-f", str(EXAMPLE))
    deployed = Deployed(pagemill, "serving", "smollm2")
    deployed.await_condition("Ready", "True", seconds=600)
    return deployed


def ask(deployed: Deployed) -> str:
    client = openai.OpenAI(base_url=f"{deployed.address()}/v1", api_key="none", max_retries=0, timeout=60)
    with client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=16,
            stream=True,
        )
        pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert len([piece for piece in pieces if piece]) > 3, "the answer came in one piece"
    return "".join(pieces)


def test_applied_example_answers_in_a_stream_through_its_service(smollm2: Deployed) -> None:
    assert "Paris" in ask(smollm2)


def test_status_says_what_serves(smollm2: Deployed) -> None:
    smollm2.await_condition("Progressing", "False", "Settled")
    eventually("capacity", lambda: smollm2.get()["status"].get("capacity"))
    status = smollm2.get()["status"]
    assert status["ready"] == "1/1"
    assert status["url"] == "http://smollm2.serving.svc:8000/v1"
    assert status["capacity"]["maxConcurrentTokens"] >= 2048
    assert smollm2.condition("MemoryFit")["status"] == "True"
    assert smollm2.condition("ModelAvailable")["status"] == "True"


def test_kubectl_shows_model_and_readiness(smollm2: Deployed) -> None:
    shown = smollm2.cluster.kubectl("get", "llmd", "-n", smollm2.namespace)
    header, line = shown.splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "AGE"]
    assert line.split()[:4] == ["smollm2", MODEL, "1/1", "Serving"]


def test_server_pod_is_hardened_and_runs_as_no_root(smollm2: Deployed) -> None:
    (pod,) = smollm2.pods()
    container = pod["spec"]["containers"][0]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_operator_writes_nothing_while_nothing_changes(smollm2: Deployed) -> None:
    """Events that change nothing of ours make it look, twenty times; it may not write, its Lease aside."""
    smollm2.await_condition("Ready", "True")
    eventually("capacity", lambda: smollm2.get()["status"].get("capacity"))
    marker = mark(smollm2.cluster, "before")
    (pod,) = smollm2.pods()
    for number in range(20):
        smollm2.cluster.kubectl(
            "annotate",
            "pod",
            pod["metadata"]["name"],
            "-n",
            smollm2.namespace,
            "--overwrite",
            f"tests.pagemill.dev/look={number}",
        )
    written = [entry for entry in since(smollm2.cluster, marker) if entry["objectRef"]["resource"] != "leases"]
    assert [entry for entry in written if entry["user"]["username"] == OPERATOR_ACCOUNT] == []
    assert len([entry for entry in written if entry["objectRef"]["resource"] == "pods"]) >= 20


def test_killed_server_is_told_in_status_and_comes_back(smollm2: Deployed) -> None:
    smollm2.await_condition("Ready", "True")
    (before,) = smollm2.pods()
    smollm2.cluster.kill_container(before["status"]["containerStatuses"][0]["containerID"])
    told = smollm2.await_condition("Ready", "False")
    assert told["reason"] in ("ServerEnded", "Starting", "Loading")
    assert "0 of 1 replicas answer" in told["message"]
    smollm2.await_condition("Ready", "True")
    (after,) = smollm2.pods()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 1
    assert "Paris" in ask(smollm2)


def test_a_new_operator_restarts_no_model(smollm2: Deployed) -> None:
    smollm2.await_condition("Ready", "True")
    (before,) = smollm2.pods()
    cluster = smollm2.cluster
    cluster.kubectl("rollout", "restart", f"deployment/{OPERATOR}", "-n", NAMESPACE)
    cluster.kubectl("rollout", "status", f"deployment/{OPERATOR}", "-n", NAMESPACE, "--timeout=180s")
    marker = mark(cluster, "restarted")
    # It has looked once it acts on something.
    cluster.kubectl("scale", "llmd/smollm2", "-n", smollm2.namespace, "--replicas=2")
    eventually("a second pod", lambda: len(smollm2.pods()) == 2 or None, seconds=120)
    assert before["metadata"]["uid"] in [pod["metadata"]["uid"] for pod in smollm2.pods()]
    assert before["status"]["containerStatuses"] == next(
        pod["status"]["containerStatuses"]
        for pod in smollm2.pods()
        if pod["metadata"]["uid"] == before["metadata"]["uid"]
    )
    assert since(cluster, marker)


def test_whoever_scales_finds_the_replicas_and_their_pods(smollm2: Deployed) -> None:
    """/scale as an HPA or KEDA reads and writes it."""
    namespace, cluster = smollm2.namespace, smollm2.cluster
    cluster.kubectl("scale", "llmd/smollm2", "-n", namespace, "--replicas=1")
    path = f"/apis/pagemill.dev/v1alpha1/namespaces/{namespace}/llmdeployments/smollm2/scale"

    def one() -> dict[str, Any] | None:
        scale: dict[str, Any] = json.loads(cluster.kubectl("get", "--raw", path))
        return scale if len(smollm2.pods()) == scale["status"]["replicas"] == scale["spec"]["replicas"] == 1 else None

    scale = eventually("a scale of one", one, seconds=600)  # the one that goes has its lame duck's time first
    found = cluster.get("pods", "-n", namespace, "-l", scale["status"]["selector"])["items"]
    assert [pod["metadata"]["name"] for pod in found] == [pod["metadata"]["name"] for pod in smollm2.pods()]


def test_deleting_it_leaves_nothing_behind(smollm2: Deployed) -> None:
    cluster, namespace = smollm2.cluster, smollm2.namespace
    cluster.kubectl("delete", "llmd", "smollm2", "-n", namespace, "--timeout=90s")

    def look() -> bool:
        left = cluster.kubectl("get", MADE, "-n", namespace, "-l", f"{LABEL}=smollm2", "-o", "name").split()
        # Pods end their streams first: a lame duck's time and a drain.
        if left:
            raise LookupError(" ".join(left))
        return True

    assert eventually("an empty namespace", look, seconds=600)
    left = cluster.kubectl("get", MADE, "-n", namespace, "-o", "name").split()
    assert set(left) == {"serviceaccount/default", "configmap/kube-root-ca.crt"}


def mark(cluster: Cluster, name: str) -> str:
    """A write of the test's own, to find a place in the audit log by."""
    marker = f"marker-{name}"
    cluster.kubectl("create", "configmap", marker, "-n", "default")
    return marker


def since(cluster: Cluster, marker: str) -> list[dict[str, Any]]:
    """The writes after a mark."""
    entries = cluster.audit()
    places = [place for place, entry in enumerate(entries) if entry.get("objectRef", {}).get("name") == marker]
    return entries[places[-1] + 1 :]
