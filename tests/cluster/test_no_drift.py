"""After a reconcile a live LLMDeployment is what Git applied: of every example, and of every spec that has golden manifests.

What Argo CD or Flux would compare is compared here as they do it, by a server-side apply that is not carried out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.deployments import LABEL, Deployed, manifest
from testbed.images import REPOSITORY
from testbed.ready import eventually

from tests.operator.golden_cases import CASES

pytestmark = pytest.mark.cluster

EXAMPLES = REPOSITORY / "examples"
MANIFESTS = [path for folder in (EXAMPLES, EXAMPLES / "argocd" / "models") for path in sorted(folder.glob("*.yaml"))]
OVERLAYS = sorted(path.parent for path in EXAMPLES.glob("kustomize/overlays/*/kustomization.yaml"))
MANAGER = "git"
# Argo CD's two ways of marking what it manages. On a child either would have the child pruned.
TRACKING_LABEL = {"app.kubernetes.io/instance": "models"}
TRACKING_ANNOTATION = {"argocd.argoproj.io/tracking-id": "models:pagemill.dev/LLMDeployment:models/any"}
MADE = "deployments,replicasets,pods,services,serviceaccounts,persistentvolumeclaims,configmaps,secrets,jobs"
SERVERS_OWN = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")


def deployments_in(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found and found["kind"] == "LLMDeployment"]


def applied(cluster: Cluster, namespace: str, wanted: dict[str, Any]) -> Deployed:
    """As Argo CD applies it: server-side, with its marks."""
    metadata = wanted["metadata"]
    metadata["namespace"] = namespace
    metadata["labels"] = {**metadata.get("labels", {}), **TRACKING_LABEL}
    metadata["annotations"] = {**metadata.get("annotations", {}), **TRACKING_ANNOTATION}
    cluster.kubectl("apply", "--server-side", f"--field-manager={MANAGER}", "-f", "-", stdin=json.dumps(wanted))
    return Deployed(cluster, namespace, metadata["name"])


def reconciled(deployed: Deployed) -> dict[str, Any]:
    """The object once the operator has looked at it and written what it thinks."""

    def look() -> dict[str, Any] | None:
        found = deployed.get()
        said = found.get("status", {})
        done = said.get("observedGeneration") == found["metadata"]["generation"] and said.get("conditions")
        return found if done else None

    return eventually(f"a status of {deployed.name}", look, seconds=120)


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """What Argo CD and Flux look at: all but the status and the server's own notes."""
    metadata = {
        name: value for name, value in found["metadata"].items() if name not in ("managedFields", "resourceVersion")
    }
    return {"metadata": metadata, "spec": found["spec"]}


def assert_no_drift(deployed: Deployed, wanted: dict[str, Any]) -> None:
    live = reconciled(deployed)
    tried = ("apply", "--server-side", f"--field-manager={MANAGER}", "--dry-run=server", "-o", "json", "-f", "-")
    again = json.loads(deployed.cluster.kubectl(*tried, stdin=json.dumps(wanted)))
    assert compared(again) == compared(live)  # its generation too: applied once more it would change nothing
    assert live["spec"] == wanted["spec"]
    metadata = {name: value for name, value in live["metadata"].items() if name not in SERVERS_OWN}
    assert metadata == wanted["metadata"]
    shown = deployed.cluster.get("llmd", deployed.name, "-n", deployed.namespace, "--show-managed-fields")
    others = [entry for entry in shown["metadata"]["managedFields"] if entry["manager"] != MANAGER]
    assert [(entry.get("subresource"), set(entry["fieldsV1"])) for entry in others] == [("status", {"f:status"})]


def unmarked_children(deployed: Deployed) -> int:
    """Returns how many there are."""
    listed = deployed.cluster.get(MADE, "-n", deployed.namespace, "-l", f"{LABEL}={deployed.name}")["items"]
    for child in listed:
        metadata = child["metadata"]
        assert not set(TRACKING_LABEL) & set(metadata["labels"]), metadata["name"]
        assert not [name for name in metadata.get("annotations", {}) if "argocd" in name], metadata["name"]
    return len(listed)


def check(cluster: Cluster, namespace: str, wanted: dict[str, Any]) -> None:
    deployed = applied(cluster, namespace, wanted)
    assert_no_drift(deployed, wanted)
    unmarked_children(deployed)
    cluster.kubectl("delete", "llmd", deployed.name, "-n", namespace, "--timeout=90s")  # no finalizer of ours holds it


def test_there_are_examples_of_each_kind() -> None:
    assert len(MANIFESTS) >= 3
    assert len(OVERLAYS) == 2


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_stays_what_was_applied(path: Path, pagemill: Cluster, namespace: str) -> None:
    for wanted in deployments_in(path.read_text(encoding="utf-8")):
        check(pagemill, namespace, wanted)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
def test_an_overlay_stays_what_was_applied(overlay: Path, pagemill: Cluster, namespace: str) -> None:
    (wanted,) = deployments_in(pagemill.kubectl("kustomize", str(overlay)))
    check(pagemill, namespace, wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_spec_of_the_golden_manifests_stays_what_was_applied(case: str, pagemill: Cluster, namespace: str) -> None:
    found = CASES[case]
    names = {name: value for name, value in found["metadata"].items() if name not in SERVERS_OWN}
    check(pagemill, namespace, {**found, "metadata": names})


def test_neither_does_it_change_when_it_serves_is_scaled_or_edited(pagemill: Cluster, namespace: str) -> None:
    wanted = manifest("chat", rollout={"lameDuckSeconds": 1})
    deployed = applied(pagemill, namespace, wanted)
    deployed.await_condition("Ready", "True", seconds=600)
    assert_no_drift(deployed, wanted)
    assert unmarked_children(deployed) >= 5
    wanted["spec"]["replicas"] = 0
    applied(pagemill, namespace, wanted)
    deployed.await_condition("Ready", "True", "ScaledToZero")
    assert_no_drift(deployed, wanted)
    assert deployed.get()["metadata"].get("finalizers") is None
