"""What one machine takes of a file, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.up_file import load

HEAD = "apiVersion: pagemill.dev/v1alpha1\nkind: LLMDeployment\n"


def write(path: Path, *bodies: str) -> str:
    path.write_text("---\n".join(HEAD + body for body in bodies))
    return str(path)


def test_several_deployments_in_the_files_order(tmp_path: Path) -> None:
    bodies = [
        "metadata: {name: b}\nspec: {model: org/b}\n",
        "metadata: {name: a, namespace: team}\nspec: {model: org/a}\n",
    ]
    wanted = load(write(tmp_path / "file.yaml", *bodies))
    assert list(wanted) == [Key("default", "b"), Key("team", "a")]
    assert all("status" not in manifest for manifest in wanted.values())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("spec: {model: 'pvc://claim/path'}", "spec.model: pvc://claim/path can only be mounted by a cluster"),
        ("spec: {model: 'oci://registry/image'}", "spec.model: oci://registry/image can only be mounted by a cluster"),
        ("spec: {model: org/name, apiKeysSecretRef: {name: k}}", "spec.apiKeysSecretRef: a Secret can only be mounted"),
        ("spec: {model: org/name, pod: {volumes: [{name: v, emptyDir: {}}]}}", "spec.pod.volumes: can only be mounted"),
        (
            "spec: {model: org/name, scheduling: {policyConfigMap: p}}",
            "spec.scheduling.policyConfigMap: can only be mounted by a cluster: on one machine use PYTHONPATH",
        ),
        ("spec: {model: org/name, replicas: 65}", "spec.replicas: 65 are too many for one machine: at most 64"),
        ("spec: {model: org/name, replicas: two}", "spec.replicas: must be an integer"),
    ],
)
def test_what_needs_a_cluster_is_refused_in_a_line(tmp_path: Path, body: str, problem: str) -> None:
    path = write(tmp_path / "file.yaml", f"metadata: {{name: llm}}\n{body}\n")
    with pytest.raises(InvalidManifest) as caught:
        load(path)
    (line,) = caught.value.problems
    assert line.startswith(path)
    assert problem in line


def test_what_a_cluster_has_written_is_left_behind(tmp_path: Path) -> None:
    """`kubectl get -o yaml` of one that is being deleted would else be taken for deleted here too."""
    ours = "name: llm, namespace: null, labels: {team: a}"
    its = "uid: u, generation: 7, resourceVersion: '3', deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x]"
    body = f"metadata: {{{ours}, {its}}}\nspec: {{model: org/name}}\nstatus: {{replicas: 1}}\n"
    ((key, manifest),) = load(write(tmp_path / "file.yaml", body)).items()
    assert key == Key("default", "llm")
    assert manifest["metadata"] == {"name": "llm", "namespace": "default", "labels": {"team": "a"}}
    assert "status" not in manifest
