"""The status and its Events hold whatever the world does: refusals, what is missing, half a rollout, a node that is lost.

What users of other operators complain of most; the rows of the survey that a test answers are named in its docstring.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

TINY = "pagemill/tiny"
NOWHERE = "localhost/nothing:1"


def events(deployed: Deployed) -> list[dict[str, Any]]:
    """Those about the LLMDeployment itself."""
    selector = f"involvedObject.kind=LLMDeployment,involvedObject.name={deployed.name}"
    found: list[dict[str, Any]] = deployed.cluster.get(
        "events", "-n", deployed.namespace, "--field-selector", selector
    )["items"]
    return found


def said(deployed: Deployed) -> Counter[str]:
    """How often each transition was told: `Ready=True Serving`."""
    return Counter(f"{event['message'].partition(':')[0]} {event['reason']}" for event in events(deployed))


def test_events_tell_a_life_each_step_once(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(pagemill, namespace, "told", model=TINY)
    deployed.await_condition("Progressing", "False", "Settled")
    first = said(deployed)
    assert first["Ready=True Serving"] == first["Progressing=False Settled"] == first["MemoryFit=True Fits"] == 1
    deploy(pagemill, namespace, "told", model=TINY, image=NOWHERE)
    deployed.await_condition("Degraded", "True", "ImagePullFailure")
    deployed.await_condition("Progressing", "False", "RolloutFailed")
    broken = said(deployed)
    assert broken["Progressing=False RolloutFailed"] == broken["Degraded=True ImagePullFailure"] == 1
    deploy(pagemill, namespace, "told", model=TINY)
    deployed.await_condition("Progressing", "False", "Settled")
    mended = said(deployed)
    assert mended["Ready=True Serving"] == 2, "it is a second time"
    assert mended["Degraded=False AsWanted"] == 1
    for event in events(deployed):
        assert event.get("count") == 1, "told once"
        assert event["involvedObject"]["uid"] == deployed.get()["metadata"]["uid"]
        assert event["type"] == ("Warning" if event["reason"] in ("ImagePullFailure", "RolloutFailed") else "Normal")
    shown = pagemill.kubectl("describe", "llmd", "told", "-n", namespace)
    assert "Degraded=True: the image can't be pulled" in shown
    assert "Ready=True: 1 of 1 replicas answer" in shown


def quota(pods: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": pods}}}


LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
}
BIG = {"resources": {"limits": {"memory": "2Gi"}}}
OPEN = {"pod": {"securityContext": {"runAsNonRoot": False}}}
REFUSED: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str, str]] = {
    "quota": (quota("0"), {}, "QuotaExceeded", "pods=1"),
    "limits": (LIMITS, BIG, "AdmissionDenied", "maximum memory usage per Container is 1Gi"),
    "security": (None, OPEN, "PodSecurityViolation", "runAsNonRoot"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pods_that_the_namespace_refuses(case: str, pagemill: Cluster, namespace: str) -> None:
    rule, spec, reason, says = REFUSED[case]
    if rule is not None:
        pagemill.apply(rule, namespace)
    else:
        pagemill.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    deployed = deploy(pagemill, namespace, case, model=TINY, **spec)
    told = deployed.await_condition("Ready", "False", reason)
    assert says in told["message"]
    assert deployed.condition("Degraded")["reason"] == reason


def test_a_policy_that_denies_pods_is_quoted(pagemill: Cluster, namespace: str) -> None:
    name = f"no-tiny-{namespace}"
    rules = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "matchConstraints": {"resourceRules": [rules]},
        "validations": [{"expression": "false", "message": "no pods on Fridays"}],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    for kind, spec in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        pagemill.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        probe = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x"},
            "spec": {"containers": [{"name": "x", "image": "x"}]},
        }

        def denies() -> bool | None:
            try:
                pagemill.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(probe))
            except Exception as refusal:  # noqa: BLE001 - kubectl's, with the policy's words
                return "Fridays" in str(refusal) or None
            return None

        eventually("the policy", denies)
        told = deploy(pagemill, namespace, "denied", model=TINY).await_condition("Ready", "False", "AdmissionDenied")
        assert "no pods on Fridays" in told["message"]
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            pagemill.kubectl("delete", kind, name)


ABSENT = {"name": "absent"}
MISSING: dict[str, tuple[dict[str, Any], str, str]] = {
    "variables": (
        {"pod": {"envFrom": [{"configMapRef": ABSENT}]}},
        "ContainerConfigError",
        'configmap "absent" not found',
    ),
    "volume": (
        {"pod": {"volumes": [{"name": "x", "configMap": ABSENT}], "volumeMounts": [{"name": "x", "mountPath": "/x"}]}},
        "ContainerConfigError",
        'configmap "absent" not found',
    ),
    "keys": ({"apiKeysSecretRef": ABSENT}, "ContainerConfigError", 'secret "absent" not found'),
    "claim": ({"model": "pvc://absent/model"}, "ClaimPending", "claim absent does not exist"),
    "selector": ({"pod": {"nodeSelector": {"pool": "none"}}}, "Unschedulable", "pod.nodeSelector"),
    "gpus": (
        {"accelerator": "gpu", "engine": {}, "gpu": {"count": 64}},
        "Unschedulable",
        "enough nvidia.com/gpu (the pod asks for 64)",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_named(case: str, pagemill: Cluster, namespace: str) -> None:
    """kthena#1220, kthena#1503."""
    spec, reason, says = MISSING[case]
    deployed = deploy(pagemill, namespace, case, **{"model": TINY, **spec})
    told = deployed.await_condition("Ready", "False", reason)
    assert says in told["message"]


# What a preflight sees, and what only a server does.
FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "preflight": ({"image": NOWHERE}, "ImagePullFailure"),
    "replica": ({"engine": {"kvCacheGiB": 0.1, "extraArgs": ["--no-such-flag"]}}, "InvalidConfiguration"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_rollout_that_fails_says_so_and_the_former_replica_serves(
    case: str, pagemill: Cluster, namespace: str
) -> None:
    change, reason = FAILING[case]
    surge = {"rollout": {"strategy": "Surge"}}
    deployed = deploy(pagemill, namespace, "half", model=TINY, **surge)
    deployed.await_condition("Ready", "True")
    deploy(pagemill, namespace, "half", **{"model": TINY, **surge, **change})
    told = deployed.await_condition("Progressing", "False", "RolloutFailed")
    assert f"{reason}: " in told["message"]
    assert "1 replica of the former spec serves" in told["message"]
    assert deployed.condition("Ready")["reason"] == "RolloutFailed"
    assert deployed.condition("Degraded")["reason"] == reason
    assert sum(pod["status"]["containerStatuses"][0]["ready"] for pod in deployed.pods()) == 1
    deploy(pagemill, namespace, "half", model=TINY, **surge)
    deployed.await_condition("Ready", "True")
    assert deployed.condition("Degraded")["status"] == "False"


def test_more_replicas_do_not_make_those_that_serve_unready(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(pagemill, namespace, "grows", model=TINY)
    deployed.await_condition("Progressing", "False", "Settled")
    deploy(pagemill, namespace, "grows", model=TINY, replicas=2)
    deployed.await_condition("Ready", "True", "Serving")
    assert deployed.get()["status"]["ready"] == "2/2"
    told = said(deployed)
    assert told["Ready=True Scaling"] == 1
    assert told["Ready=True Serving"] == 2
    assert not [line for line in told if line.startswith("Ready=False")]


def test_what_lacks_beside_the_replicas_degrades_and_they_serve(pagemill: Cluster, namespace: str) -> None:
    """The cluster has no PodMonitor."""
    deployed = deploy(pagemill, namespace, "unwatched", model=TINY, monitoring={"podMonitor": True})
    told = deployed.await_condition("Degraded", "True", "MonitoringUnavailable")
    assert "PodMonitor" in told["message"]
    deployed.await_condition("Ready", "True", "Serving")
    deployed.await_condition("Degraded", "True", "MonitoringUnavailable")


def test_another_model_is_never_ready_with_the_former_ones_pods(pagemill: Cluster, namespace: str) -> None:
    """LLMKube#1767: the change of a model rolls, and observedGeneration comes only with conditions about it."""
    deployed = deploy(pagemill, namespace, "changed", model=TINY)
    deployed.await_condition("Ready", "True")
    deploy(pagemill, namespace, "changed", model="file:///models/pagemill/tiny")

    def ready() -> bool | None:
        found = deployed.get()
        conditions = {one["type"]: one for one in found["status"]["conditions"]}
        assert {one["observedGeneration"] for one in conditions.values()} == {found["status"]["observedGeneration"]}
        if found["status"]["observedGeneration"] != found["metadata"]["generation"]:
            return None
        if conditions["Ready"]["status"] != "True":
            return None
        # The former one's may be there still, for as long as what it runs takes; no endpoint of the Service leads to it any more.
        (pod,) = deployed.staying()
        assert pod["status"]["containerStatuses"][0]["ready"]
        assert "/models/pagemill/tiny" in json.dumps(pod["spec"]["containers"][0])
        return True

    eventually("the other model", ready, seconds=600)


def test_a_node_that_is_lost_is_told_and_comes_back(pagemill: Cluster, namespace: str) -> None:
    """Last: nothing else can run meanwhile."""
    if pagemill.node is None:
        pytest.skip("only a kubelet of our own can be stopped")
    deployed = deploy(pagemill, namespace, "lost", model=TINY)
    deployed.await_condition("Ready", "True")
    pagemill.node.sandbox.send("kubelet", signal.SIGSTOP)
    try:
        told = deployed.await_condition("Ready", "False", "NodeUnreachable", seconds=600)
        assert "does not answer" in told["message"]
    finally:
        pagemill.node.sandbox.send("kubelet", signal.SIGCONT)
    deployed.await_condition("Ready", "True")
