"""The chart renders what the operator needs and no more, and says no to values that it does not know."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagemill"
CRD = REPOSITORY / "crds" / "pagemill.dev_llmdeployments.yaml"
Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] in kinds]


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(objects, "Deployment")
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = deployment(objects)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_crd_is_the_generated_one_and_outlives_an_uninstall(render: Render) -> None:
    (crd,) = [found for found in render() if found["kind"] == "CustomResourceDefinition"]
    kept = {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}
    assert crd["metadata"].pop("annotations") == kept
    assert crd == yaml.safe_load(CRD.read_text())


def test_the_crd_can_be_let_go_or_left_out(render: Render) -> None:
    (crd,) = of_kind(render("crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]
    assert not [found for found in render("crds.enabled=false") if found["kind"] == "CustomResourceDefinition"]


def test_two_operators_by_default_of_which_a_lease_elects_one(render: Render) -> None:
    objects = render()
    spec = deployment(objects)["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    arguments = container(objects)["args"]
    assert {"--lease-namespace=system", "--lease-name=pagemill-operator", "--metrics-port=9402"} < set(arguments)
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": spec["selector"],
    }
    assert not of_kind(render("operator.replicas=1"), "PodDisruptionBudget"), "it would block every drain of a node"


def test_the_operators_pod_is_hardened(render: Render) -> None:
    objects = render()
    pod = deployment(objects)["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(objects)["image"] == f"pagemill/operator:{__version__}"


def test_a_user_of_the_clusters_choice_can_be_had(render: Render) -> None:
    objects = render("operator.podSecurityContext.runAsUser=null,operator.podSecurityContext.runAsGroup=null")
    for kind in ("Deployment", "Pod"):
        (found,) = [found for found in objects if found["kind"] == kind]
        pod = found["spec"]["template"]["spec"] if kind == "Deployment" else found["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_helm_test_can_be_left_out(render: Render) -> None:
    def named(objects: list[dict[str, Any]]) -> list[str]:
        return [found["kind"] for found in objects if found["metadata"]["name"] == "pagemill-operator-test"]

    assert sorted(named(render())) == ["ConfigMap", "Pod", "Role", "RoleBinding", "ServiceAccount"]
    assert not named(render("helmTest.enabled=false"))
    hooks = [found["kind"] for found in render() if "helm.sh/hook" in found["metadata"].get("annotations", {})]
    assert hooks == ["Pod"], "Helm waits for each hook's deletion"


def test_probes_and_metrics_have_ports(render: Render) -> None:
    objects = render()
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container(objects)[probe]["httpGet"] == {"path": "/healthz", "port": "probe"}
    assert f"--liveness=http://0.0.0.0:{ports['probe']}/healthz" in container(objects)["args"]
    assert f"--metrics-port={ports['metrics']}" in container(objects)["args"]
    (service,) = of_kind(objects, "Service")
    assert service["spec"]["selector"] == deployment(objects)["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"] == [{"name": "metrics", "port": ports["metrics"], "targetPort": "metrics"}]


def test_named_namespaces_reach_the_operator(render: Render) -> None:
    assert container(render())["args"][0] == "--all-namespaces"
    arguments = container(render("watchNamespaces={blue,green}"))["args"]
    assert arguments[:2] == ["--namespace=blue", "--namespace=green"]
    assert "--all-namespaces" not in arguments


def test_default_server_images_reach_the_operator(render: Render) -> None:
    found = container(render("server.image.cpu=a/b:1", "server.image.pullPolicy=Always"))
    environment = {entry["name"]: entry["value"] for entry in found["env"]}
    assert environment["PAGEMILL_CPU_IMAGE"] == "a/b:1"
    assert environment["PAGEMILL_IMAGE_PULL_POLICY"] == "Always"
    assert environment["PAGEMILL_GATEWAY_IMAGE"] == found["image"], "gateways run the operator's own"


def test_who_applies_too_much_gpu_memory_is_warned_and_not_refused(render: Render) -> None:
    (binding,) = of_kind(render(), "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["validationActions"] == ["Warn"]
    (policy,) = of_kind(render(), "ValidatingAdmissionPolicy")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (scoped,) = of_kind(render("watchNamespaces={blue}"), "ValidatingAdmissionPolicyBinding")
    (expression,) = scoped["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["blue"]}
    assert not of_kind(render("admissionPolicy.enabled=false"), "ValidatingAdmissionPolicy")


@pytest.mark.parametrize(
    "value",
    [
        "operater.image.tag=1",
        "operator.image.tagg=1",
        "operator.replicas=two",
        "watchNamespaces={Upper}",
        "crds.keep=maybe",
        "monitoring.rules.thresholds.ttft=1",
        "monitoring.podMonitor.interval=often",
        "monitoring.rules.thresholds.kvCacheUsage=95",
        "helmTest.timeoutSeconds=0",
    ],
)
def test_unknown_or_wrong_values_are_refused(value: str, helm: Helm) -> None:
    refused = helm("template", "pagemill", str(CHART), "--set", value)
    assert refused.returncode != 0
    assert "values don't meet the specifications of the schema" in refused.stderr


def test_the_schema_knows_each_value_and_no_other() -> None:
    def check(value: Any, schema: dict[str, Any], path: str) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            assert set(value) == set(schema["properties"]) - {"global"}, path
            for name, below in value.items():
                check(below, schema["properties"][name], f"{path}.{name}")

    check(
        yaml.safe_load((CHART / "values.yaml").read_text()),
        json.loads((CHART / "values.schema.json").read_text()),
        "values",
    )


@pytest.mark.parametrize("values", sorted(CHART.glob("ci/*-values.yaml")), ids=lambda path: path.stem)
def test_lint_finds_nothing(values: Path, helm: Helm) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(values))
    assert linted.returncode == 0, linted.stdout


def test_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
