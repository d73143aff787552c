"""The webhook on the real cluster, with the certificate that Helm makes: refusals at apply time, and no hold-up when it is away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from testbed.cluster import Cluster, CommandFailed
from testbed.deployments import deploy, manifest
from testbed.images import Images
from testbed.operators import Operators
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR, upgrade

from pagemill_operator.metrics import LEADER

pytestmark = pytest.mark.cluster

PAUSED: dict[str, Any] = {"suspend": True}
SECRET = "pagemill-operator-webhook"
ON = "webhook.enabled=true"
GPU: dict[str, Any] = {"model": "pagemill/tiny", "accelerator": "gpu", "engine": {}, **PAUSED}
MIB = 1024**2
# As replicas on GPUs would have measured: a token takes 16 KiB.
CAPACITY = {
    "weightsBytes": 200 * MIB,
    "kvCacheBytes": 100 * MIB,
    "kvBlocks": 400,
    "maxConcurrentTokens": 6400,
    "maxModelLenThatFits": 6400,
}


@pytest.fixture(scope="module")
def webhook(pagemill: Cluster, images: Images) -> Iterator[Cluster]:
    """The release with its webhook on, answering."""
    upgrade(pagemill, images, ON)
    pagemill.kubectl("create", "namespace", "asked")
    await_answer(pagemill)
    try:
        yield pagemill
    finally:
        upgrade(pagemill, images)
        pagemill.kubectl("delete", "namespace", "asked", "--wait=false")


def await_answer(cluster: Cluster) -> None:
    """Until it says something: before it listens everything is let through. A dry run stores nothing."""
    ask = ("apply", "-n", "asked", "--dry-run=server", "-f", "-")
    wrong = json.dumps(manifest("probe", engine={"quantization": "fp8"}))

    def answered() -> str:
        try:
            return cluster.refused(*ask, stdin=wrong)
        except AssertionError as let_through:
            raise LookupError(str(let_through)) from let_through

    eventually("the webhook's answer", answered, seconds=600)


def refused(cluster: Cluster, namespace: str, name: str, **spec: Any) -> str:
    return cluster.refused("apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest(name, **spec)))


def test_what_no_release_serves_is_refused_at_apply_time(webhook: Cluster, namespace: str) -> None:
    said = refused(webhook, namespace, "fp8", engine={"quantization": "fp8"})
    assert 'admission webhook "llmdeployments.pagemill.dev" denied the request' in said
    assert "UnsupportedField: spec.engine.quantization is not served by this release" in said
    assert webhook.kubectl("get", "llmd", "-n", namespace, "-o", "name") == ""


def test_what_the_crd_can_not_say_is_refused(webhook: Cluster, namespace: str) -> None:
    said = refused(webhook, namespace, "flag", engine={"extraArgs": ["--port=1"]})
    assert "InvalidSpec: spec.engine.extraArgs: --port follows from the spec's other fields" in said


def test_a_served_name_is_taken_once(webhook: Cluster, namespace: str) -> None:
    first = deploy(webhook, namespace, "one", servedModelNames=["chat"], **PAUSED)
    first.await_condition("Ready", "True", "ScaledToZero")  # by then the operator that leads knows of it
    same = json.dumps(manifest("two", servedModelNames=["chat"], **PAUSED))
    said = eventually(
        "a refusal", lambda: tried(webhook, namespace, same) or None
    )  # the other one may be the one asked
    assert "ServedNameTaken: one is served as chat already: set servedModelNames to names of its own" in said
    deploy(webhook, namespace, "two", servedModelNames=["chat-2"], **PAUSED)


def test_what_can_not_fit_is_refused_with_what_replicas_of_the_model_have_measured(
    webhook: Cluster, namespace: str
) -> None:
    deploy(webhook, namespace, "measured", **GPU).await_condition("Ready", "True", "ScaledToZero")
    with nobody_acts(webhook):  # or the status would be put right at once: no GPU has measured anything here
        patch = json.dumps({"status": {"capacity": CAPACITY}})
        webhook.kubectl("patch", "llmd/measured", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
        said = eventually("a refusal", lambda: of_size(webhook, namespace, length=4096, gib=0.25) or None)
        assert (
            "KVCacheTooSmall: pagemill/tiny has weights of 200.0 MiB, and 0.9 of a GPU of 256.0 MiB are 230.4 MiB: there is "
            "room for 1920 tokens beside them, not for 4096; set maxModelLen to 1920 or less"
        ) in said
        assert of_size(webhook, namespace, length=1920, gib=0.25) == ""
        assert of_size(webhook, namespace, length=4096, gib=0.5) == ""
        wider = {"dtype": "float32"}
        assert of_size(webhook, namespace, length=4096, gib=0.25, engine=wider) == "", "nobody has measured that"
        none = eventually("a refusal", lambda: of_size(webhook, namespace, length=4096, gib=0.125) or None)
        assert (
            "there is room for 0 tokens beside them, not for 4096; use a larger GPU, or more of them (gpu.count)"
            in none
        )
    assert webhook.kubectl("get", "llmd", "-n", namespace, "-o", "name").split() == [
        "llmdeployment.pagemill.dev/measured"
    ]


def of_size(cluster: Cluster, namespace: str, *, length: int, gib: float, **spec: Any) -> str:
    asked = {"maxModelLen": length, "gpu": {"memoryGiB": gib}, "servedModelNames": ["tried"]}
    return tried(cluster, namespace, json.dumps(manifest("tried", **{**GPU, **asked, **spec})))


def tried(cluster: Cluster, namespace: str, wanted: str) -> str:
    """What is said against it; nothing where it would be stored."""
    try:
        cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=wanted)
    except CommandFailed as refusal:
        return str(refusal.stderr)
    return ""


@contextlib.contextmanager
def nobody_acts(cluster: Cluster) -> Iterator[None]:
    """A hand holds the Lease: all operators watch and answer the webhook, and none of them writes."""
    operators = Operators(cluster)

    def held_by(holder: str) -> None:
        spec = json.dumps({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 600}})
        cluster.kubectl("patch", "lease", OPERATOR, "-n", NAMESPACE, "--type=merge", "-p", spec)

    def idle() -> bool | None:
        return all(f"{LEADER} 0.0" in operators.metrics(pod) for pod in operators.pods()) or None

    held_by("a-hand")
    try:
        eventually("the end of the lead", idle)
        yield
    finally:
        held_by("")


def test_a_class_of_ones_own_is_let_through_with_a_warning(webhook: Cluster, namespace: str) -> None:
    made = json.dumps(manifest("classy", schedulingPolicy="ours:Shortest", **PAUSED))
    said = webhook.kubectl("apply", "-n", namespace, "-f", "-", "--warnings-as-errors=false", stdin=made)
    assert "llmdeployment.pagemill.dev/classy created" in said
    warned = webhook.refused(
        "apply", "-n", namespace, "-f", "-", "--warnings-as-errors", stdin=made.replace("Shortest", "Longest")
    )
    assert "schedulingPolicy ours:Longest: only the server can tell" in warned


def test_status_metadata_and_deletion_of_what_is_wrong_are_not_held_up(
    webhook: Cluster, images: Images, namespace: str
) -> None:
    """It was stored while nobody answered."""
    webhook.kubectl("scale", f"deployment/{OPERATOR}", "-n", NAMESPACE, "--replicas=0")
    webhook.kubectl(
        "wait", "pods", "-l", f"app.kubernetes.io/name={OPERATOR}", "--for=delete", "-n", NAMESPACE, "--timeout=180s"
    )
    deployed = deploy(webhook, namespace, "wrong", engine={"quantization": "fp8"})  # fails open
    webhook.kubectl("scale", f"deployment/{OPERATOR}", "-n", NAMESPACE, "--replicas=1")
    webhook.kubectl("rollout", "status", f"deployment/{OPERATOR}", "-n", NAMESPACE, "--timeout=180s")
    deployed.await_condition("Ready", "False", "UnsupportedField")  # the operator's own write of status was let through
    await_answer(webhook)
    webhook.kubectl("label", "llmd", "wrong", "-n", namespace, "a=b")
    webhook.kubectl("scale", "llmd", "wrong", "-n", namespace, "--replicas=2")
    deploy(webhook, namespace, "wrong", **PAUSED)
    deployed.await_condition("Ready", "True", "ScaledToZero")
    webhook.kubectl("delete", "llmd", "wrong", "-n", namespace, "--timeout=90s")


def test_an_upgrade_keeps_the_certificate(webhook: Cluster, images: Images) -> None:
    before = webhook.get("secret", SECRET, "-n", NAMESPACE)["data"]
    upgrade(webhook, images, ON, "operator.podLabels.again=yes")
    assert webhook.get("secret", SECRET, "-n", NAMESPACE)["data"] == before
    (configured,) = webhook.get("validatingwebhookconfiguration", SECRET)["webhooks"]
    assert configured["clientConfig"]["caBundle"] == before["ca.crt"]
    await_answer(webhook)
