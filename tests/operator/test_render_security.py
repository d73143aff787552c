"""No secret's value in anything that is rendered, but for the one Secret of ours; no field of the spec that could hold one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pagemill_operator.management_token import management_token, secret_name
from pagemill_operator.render import render
from pagemill_operator.resource import read
from tests.operator.golden_cases import CASES, MANAGED
from tests.operator.spec_leaves import leaves


@pytest.mark.parametrize("name", CASES)
def test_secrets_come_by_reference_only(name: str) -> None:
    resource = read(CASES[name])
    token = management_token(MANAGED.management_key, resource.owner.key)
    key = MANAGED.management_key.decode()
    for child in render(resource, MANAGED):
        text = json.dumps(child)
        assert key not in text
        if child["kind"] == "Secret":
            assert child["metadata"]["name"] == secret_name(resource.owner.key.name)
            assert list(child["stringData"].values()) == [token]
        else:
            assert token not in text


@pytest.mark.parametrize("name", CASES)
def test_what_sounds_like_a_secret_has_no_value_of_its_own(name: str) -> None:
    (deployment,) = [child for child in render(read(CASES[name]), MANAGED) if child["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        if re.search("TOKEN|KEY|PASSWORD|SECRET", variable["name"]):
            assert "value" not in variable
            assert variable["valueFrom"]["secretKeyRef"]["name"]
    assert not [word for word in container["args"] if word.startswith(("--api-key=", "--management-token"))]


def test_no_field_of_the_spec_asks_for_a_secrets_value() -> None:
    """Names of Secrets and of their keys, and `pod.env`, whose values are what Kubernetes' own are."""
    suspicious = [leaf.path for leaf in leaves() if re.search("(?i)token|password|secret|apikey", leaf.path)]
    values = [path for path in suspicious if not re.search(r"(Ref|Secrets\[\])\.(name|key)$", path)]
    assert sorted(values) == ["engine.maxNumBatchedTokens", "scheduling.maxQueuedTokens"], "tokens of text"


@pytest.mark.parametrize("name", CASES)
def test_management_is_no_port_of_the_service(name: str) -> None:
    children = {child["kind"]: child for child in render(read(CASES[name]), MANAGED)}
    assert [port["targetPort"] for port in children["Service"]["spec"]["ports"]] == ["http"]


def pod(**spec: Any) -> Any:
    made = {**CASES["gpu"], "spec": {**CASES["gpu"]["spec"], **spec}}
    (deployment,) = [child for child in render(read(made), MANAGED) if child["kind"] == "Deployment"]
    return deployment["spec"]["template"]


def test_shared_memory_is_there_and_sized() -> None:
    """production-stack#899, #276: without /dev/shm NCCL ends with a bus error."""
    spec = pod(pod={"shmSizeMiB": 4096})["spec"]
    (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096Mi"}
    assert any(mount["mountPath"] == "/dev/shm" for mount in pod()["spec"]["containers"][0]["volumeMounts"])


def test_the_cache_claim_is_in_the_namespace_of_its_pods_and_may_be_shared() -> None:
    """LLMKube#728, #363: a claim in another namespace; kserve#3409: one that only one node can mount, for many replicas."""
    made = {
        **CASES["gpu"],
        "spec": {**CASES["gpu"]["spec"], "modelCache": {"size": "1Gi", "accessMode": "ReadWriteMany"}},
    }
    children = {child["kind"]: child for child in render(read(made), MANAGED)}
    claim = children["PersistentVolumeClaim"]
    assert claim["metadata"]["namespace"] == children["Deployment"]["metadata"]["namespace"] == "team"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    volumes = children["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert {"claimName": claim["metadata"]["name"]} in [volume.get("persistentVolumeClaim") for volume in volumes]


def test_where_a_pod_may_go_reaches_the_pod() -> None:
    """kaito#2220, #1428: tolerations, labels and selectors that were ignored."""
    asked: dict[str, Any] = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
    }
    template = pod(pod={**asked, "labels": {"team": "search"}, "annotations": {"a": "b"}})
    assert {name: template["spec"][name] for name in asked} == asked
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["metadata"]["annotations"]["a"] == "b"
