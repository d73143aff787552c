"""The chart renders what the operator needs and no more, and says no to values that it does not know."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill import __version__
from pagemill_operator.cluster.kinds import RULES

pytestmark = pytest.mark.cluster  # helm comes with the cluster's programs

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagemill"
CRD = REPOSITORY / "crds" / "pagemill.dev_llmdeployments.yaml"
Render = Callable[..., list[dict[str, Any]]]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] in kinds]


def granted(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of a role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_crd_is_the_generated_one_and_outlives_an_uninstall(render: Render) -> None:
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(CRD.read_text())


def test_the_crd_can_be_let_go_or_left_out(render: Render) -> None:
    (crd,) = of_kind(render("crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]
    assert not of_kind(render("crds.enabled=false"), "CustomResourceDefinition")


def test_rights_are_those_that_the_operator_uses(render: Render) -> None:
    (role,) = of_kind(render(), "ClusterRole")
    wanted = {(rule.group, rule.resource, verb) for rule in RULES for verb in rule.verbs}
    assert granted(role) == wanted


def test_no_rights_over_secrets_or_into_pods(render: Render) -> None:
    (role,) = of_kind(render(), "ClusterRole")
    touched = {resource for _, resource, _ in granted(role)}
    assert not touched & {"secrets", "pods/exec", "*", "roles", "clusterroles"}


def test_named_namespaces_get_a_role_each_and_nothing_cluster_wide(render: Render) -> None:
    objects = render("watchNamespaces={blue,green}")
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    assert [role["metadata"]["namespace"] for role in of_kind(objects, "Role")] == ["blue", "green"]
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pagemill-operator", "namespace": "system"}]
    (cluster_wide,) = of_kind(render(), "ClusterRole")
    assert all(granted(role) == granted(cluster_wide) for role in of_kind(objects, "Role"))
    (deployment,) = of_kind(objects, "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["--namespace=blue", "--namespace=green"]
    assert "--all-namespaces" not in arguments


def test_the_operators_pod_is_hardened_and_alone(render: Render) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probe"}
    assert container["image"] == f"pagemill/operator:{__version__}"


def test_default_server_images_reach_the_operator(render: Render) -> None:
    (deployment,) = of_kind(render("server.image.cpu=a/b:1", "server.image.pullPolicy=Always"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["PAGEMILL_CPU_IMAGE"] == "a/b:1"
    assert environment["PAGEMILL_IMAGE_PULL_POLICY"] == "Always"


@pytest.mark.parametrize(
    "value", ["operater.image.tag=1", "operator.image.tagg=1", "watchNamespaces={Upper}", "crds.keep=maybe"]
)
def test_unknown_or_wrong_values_are_refused(value: str, helm: str) -> None:
    command = [helm, "template", "pagemill", str(CHART), "--set", value]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "values don't meet the specifications of the schema" in refused.stderr


def test_lint_finds_nothing(helm: str) -> None:
    linted = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


def test_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
