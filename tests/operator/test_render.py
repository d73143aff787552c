"""Children against golden manifests, and what must hold of every one of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml

from pagemill_operator.render import render
from pagemill_operator.render_pod import GRACE_MARGIN
from pagemill_operator.resource import read
from tests.operator.golden_cases import CASES, FOLDER, SETTINGS, rendered
from tests.operator.manifests import stored


def children(name: str) -> dict[str, Any]:
    return {child["kind"]: child for child in render(read(CASES[name]), SETTINGS)}


def pod(name: str) -> Any:
    return children(name)["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, rewrite_golden: bool) -> None:
    file = FOLDER / f"{name}.yaml"
    if rewrite_golden:
        file.write_text(rendered(name), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == rendered(name), "look at the difference; if it is meant: make golden"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_pod_meets_pod_securitys_restricted(name: str) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", CASES)
def test_a_stop_fits_its_grace_period(name: str) -> None:
    spec = read(CASES[name]).spec
    arguments = pod(name)["containers"][0]["args"]
    lame, drain = (int(arguments[arguments.index(flag) + 1]) for flag in ("--lame-duck-seconds", "--shutdown-timeout"))
    assert (lame, drain) == (spec.rollout.lame_duck_seconds, spec.rollout.drain_timeout_seconds)
    assert pod(name)["terminationGracePeriodSeconds"] == lame + drain + GRACE_MARGIN


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_the_resources_metadata_goes_on_but_what_is_allowed(name: str) -> None:
    for child in render(read(CASES[name]), SETTINGS):
        text = yaml.safe_dump({**child, "metadata": {**child["metadata"], "ownerReferences": []}})
        assert "argo" not in text
    labels = children("labelled")["Deployment"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/part-of"] == "search"


def test_replace_needs_no_spare_gpu_and_surge_is_asked_for() -> None:
    assert children("gpu")["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert children("everything")["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }


def test_api_keys_are_a_folder_that_only_reads_and_changes_with_the_secret() -> None:
    """All of the Secret, for the kubelet never changes what is mounted by `subPath` or an item of its own."""
    volumes = {volume["name"]: volume for volume in pod("everything")["volumes"]}
    assert volumes["api-keys"]["secret"] == {"secretName": "clients"}
    (container,) = pod("everything")["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "api-keys"]
    assert mount == {"name": "api-keys", "mountPath": "/etc/pagemill/api-keys", "readOnly": True}
    assert "api-keys" not in str(pod("cpu"))


def test_only_a_gpu_deployment_takes_a_gpu() -> None:
    assert pod("gpu")["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "resources" not in pod("cpu")["containers"][0]


def test_a_retained_claim_has_no_owner_and_another_one_has() -> None:
    assert "ownerReferences" not in children("everything")["PersistentVolumeClaim"]["metadata"]
    assert children("claim")["PersistentVolumeClaim"]["metadata"]["ownerReferences"][0]["uid"] == "uid-of-claim"


def test_a_manifest_from_a_file_has_neither_owner_nor_namespace() -> None:
    for child in children("from-a-file").values():
        assert "ownerReferences" not in child["metadata"]
        assert "namespace" not in child["metadata"]


def test_the_render_does_not_touch_its_input() -> None:
    case = copy.deepcopy(CASES["everything"])
    render(read(case), SETTINGS)
    assert case == CASES["everything"]


class TestUpgradeOfTheOperator:
    """Rule 8: an upgrade restarts no model pod, a change of the spec takes the new image."""

    LATER = replace(SETTINGS, cpu_image="registry.example/server:cpu-next", image_pull_policy="Always", version="next")

    def deployment(self, live: Any = None, settings: Any = SETTINGS, **spec: Any) -> Any:
        return render(read(stored(**spec)), settings, live)[-1]

    def test_the_image_that_runs_stays(self) -> None:
        live = self.deployment()
        assert self.deployment(live, self.LATER) == live

    def test_scaling_keeps_it_too(self) -> None:
        live = self.deployment()
        scaled = self.deployment(live, self.LATER, replicas=3)
        assert scaled["spec"]["template"] == live["spec"]["template"]
        assert scaled["spec"]["replicas"] == 3

    def test_what_restarts_anyway_takes_the_new_one(self) -> None:
        changed = self.deployment(self.deployment(), self.LATER, maxModelLen=512)
        (container,) = changed["spec"]["template"]["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (self.LATER.cpu_image, "Always")

    def test_the_specs_image_goes_before(self) -> None:
        live = self.deployment(image="own:1")
        assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "own:1"
        assert (
            self.deployment(live, self.LATER, image="own:2")["spec"]["template"]["spec"]["containers"][0]["image"]
            == "own:2"
        )
        assert (
            self.deployment(live, self.LATER)["spec"]["template"]["spec"]["containers"][0]["image"]
            == self.LATER.cpu_image
        )


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"accelerator": "gpu", "modelCache": {"size": "10Gi"}}, True),
        ({"accelerator": "gpu", "modelCache": {"existingClaim": "weights"}}, True),
        ({"accelerator": "gpu"}, False),
        ({"accelerator": "cpu", "modelCache": {"size": "10Gi"}}, False),
    ],
    ids=["claim", "existing", "no-cache", "cpu"],
)
def test_compiled_kernels_are_kept_beside_the_models(fields: dict[str, Any], kept: bool) -> None:
    """Where there is no such place the image's own /tmp/triton holds."""
    made = {child["kind"]: child for child in render(read(stored("kernels", **fields)), SETTINGS)}
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    named = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert named.get("TRITON_CACHE_DIR") == ("/models-cache/.triton" if kept else None)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert not mounts["/models-cache"].get("readOnly")
