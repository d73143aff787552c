"""What the types refuse, in which words, and what a good manifest becomes."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.resource import deleting, owner_of, read
from tests.operator.golden_cases import EVERYTHING
from tests.operator.manifests import REFUSED, Mistake, manifest, stored


@pytest.mark.parametrize("mistake", REFUSED.values(), ids=REFUSED.keys())
def test_a_mistake_is_one_line_with_its_path(mistake: Mistake) -> None:
    with pytest.raises(InvalidManifest) as raised:
        read(manifest(**mistake.spec))
    (problem,) = raised.value.problems
    assert mistake.says in problem
    assert "\n" not in problem


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidManifest) as raised:
        read(manifest(replicas="x", engin={}, suspend="no"))
    assert [problem.partition(":")[0] for problem in raised.value.problems] == [
        "spec.replicas",
        "spec.suspend",
        "spec.engin",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"apiVersion": "pagemill.dev/v1"}, "apiVersion and kind: must be pagemill.dev/v1alpha1 and LLMDeployment"),
        ({"kind": "Deployment"}, "apiVersion and kind"),
        ({"metadata": {}}, "metadata.name: is missing"),
        ({"metadata": {"name": "x" * 51}}, "metadata.name: has 51 characters, at most 50"),
        ({"metadata": {"name": "Chat"}}, "metadata.name: 'Chat' must be lower-case"),
        ({"metadata": {"name": "7b-chat"}}, "beginning with a letter"),
        ({"spec": None}, "spec: is missing"),
        ({"specs": {}}, "specs: unknown field"),
    ],
)
def test_the_frame_is_checked(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidManifest, match=says):
        read({**manifest(), **change})


@pytest.mark.parametrize("flag", ["--port", "--model", "--max-model-len=5"])
def test_an_extra_flag_that_has_a_field_is_refused(flag: str) -> None:
    with pytest.raises(InvalidManifest, match=r"spec\.engine\.extraArgs: --[a-z-]+ follows from the spec"):
        read(manifest(engine={"extraArgs": [flag]}))


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (
            {"labels": {"pagemill.dev/deployment": "other"}},
            "spec.pod.labels: pagemill.dev/deployment is the operator's own",
        ),
        ({"annotations": {"pagemill.dev/template-hash": "0"}}, "is the operator's own"),
        ({"volumes": [{"name": "models", "emptyDir": {}}]}, "spec.pod.volumes: the name models is the operator's own"),
    ],
)
def test_what_the_operator_needs_of_a_pod_is_its_own(pod: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidManifest, match=says):
        read(manifest(pod=pod))


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    "nodes",
    [
        "gpu",
        {_REQUIRED: "gpu"},
        {_REQUIRED: [{"matchExpressions": []}]},
        {_REQUIRED: {"nodeSelectorTerms": "gpu"}},
        {_REQUIRED: {"nodeSelectorTerms": ["gpu"]}},
        {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": {"gpu": "a100"}}]}},
        {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": ["gpu"], "operator": "Exists"}]}]}},
        {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"key": "gpu", "operator": "In", "values": "a100"}]}]}},
        {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"key": "gpu", "operator": "Gt", "values": [8]}]}]}},
        {"preferredDuringSchedulingIgnoredDuringExecution": {"weight": 1}},
    ],
)
def test_an_affinity_of_another_shape_is_told(nodes: Any) -> None:
    """The CRD hands it through, and the preflight reads it."""
    with pytest.raises(InvalidManifest, match=r"spec\.pod\.affinity: .*must be"):
        read(manifest(pod={"affinity": {"nodeAffinity": nodes}}))


def test_a_good_manifest_is_read_whole_and_frozen() -> None:
    resource = read(stored(generation=7, **EVERYTHING))
    assert resource.owner.key == Key("team", "chat")
    assert (resource.owner.uid, resource.owner.generation) == ("uid-of-chat", 7)
    assert resource.spec.engine.extra_args == ("--load-format", "safetensors")
    assert resource.spec.gpu.memory_gib == 80
    with pytest.raises(ValueError, match="frozen"):
        resource.spec.model = "other"  # type: ignore[misc]


def test_what_is_left_out_has_its_default() -> None:
    spec = read({**manifest(), "spec": {"model": "org/name"}}).spec
    assert (spec.accelerator, spec.gpu_memory_utilization, spec.scheduling_policy) == ("gpu", 0.9, "fcfs")
    assert (spec.replicas, spec.rollout.strategy, spec.service.port) == (None, "Replace", 8000)


def test_external_scaling_goes_beside_replicas() -> None:
    assert read(manifest(replicas=2, autoscaling={"maxReplicas": 3, "engine": "External"})).spec.replicas == 2


def test_an_invalid_resource_still_has_an_owner() -> None:
    broken = stored(replicas="x")
    assert owner_of(broken).key == Key("team", "chat")
    assert not deleting(broken)
    broken["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert deleting(broken)
