"""How much memory a replica will have, told by spec and nodes, and that the Job asks about the very spec it is for."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill.preflight_command import asked, parser
from pagemill_operator.fit_request import ask_of
from pagemill_operator.gpu_memory import device_memory
from pagemill_operator.preflight_job import Attempt, job
from pagemill_operator.resource import read
from tests.operator.golden_cases import EVERYTHING, SETTINGS
from tests.operator.manifests import stored

GIB = 1 << 30


def node(
    name: str, mib: int | str | None, *, gpus: int = 1, taints: tuple[dict[str, str], ...] = (), **labels: str
) -> Any:
    labels |= {} if mib is None else {"nvidia.com/gpu.memory": str(mib)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "4"}},
    }


def required(*rules: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]} for rule in rules]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


SMALL, LARGE = node("small", 16384, kind="t4"), node("large", 81920, kind="h100", gen="9")
TAINTED = node("tainted", 8192, taints=({"key": "team", "value": "a", "effect": "NoSchedule"},))


@pytest.mark.parametrize(
    ("spec", "nodes", "mib"),
    [
        ({}, (), None),
        ({}, (SMALL, LARGE), 16384),
        ({"gpu": {"memoryGiB": 24}}, (SMALL,), 24 * 1024),
        ({"pod": {"nodeSelector": {"kind": "h100"}}}, (SMALL, LARGE), 81920),
        ({"pod": {"nodeSelector": {"kind": "none"}}}, (SMALL, LARGE), None),
        ({"gpu": {"count": 2}}, (SMALL, node("two", 40960, gpus=2)), 40960),
        ({}, (LARGE, node("silent", None)), None),
        ({}, (LARGE, node("odd", "many")), None),
        ({}, (LARGE, node("no GPU", None, gpus=0)), 81920),
        ({}, (LARGE, TAINTED), 81920),
        ({"pod": {"tolerations": [{"key": "team", "value": "a"}]}}, (LARGE, TAINTED), 8192),
        ({"pod": {"tolerations": [{"key": "team", "value": "b"}]}}, (LARGE, TAINTED), 81920),
        ({"pod": {"tolerations": [{"operator": "Exists"}]}}, (LARGE, TAINTED), 8192),
        ({}, (node("gpus only", 8192, taints=({"key": "nvidia.com/gpu", "effect": "NoSchedule"},)),), 8192),
        ({}, (LARGE, node("soft", 8192, taints=({"key": "x", "effect": "PreferNoSchedule"},))), 8192),
        ({"pod": required({"key": "kind", "operator": "In", "values": ["h100"]})}, (SMALL, LARGE), 81920),
        ({"pod": required({"key": "kind", "operator": "NotIn", "values": ["t4"]})}, (SMALL, LARGE), 81920),
        ({"pod": required({"key": "gen", "operator": "Exists"})}, (SMALL, LARGE), 81920),
        ({"pod": required({"key": "gen", "operator": "DoesNotExist"})}, (SMALL, LARGE), 16384),
        ({"pod": required({"key": "gen", "operator": "Gt", "values": ["8"]})}, (SMALL, LARGE), 81920),
        ({"pod": required({"key": "gen", "operator": "Lt", "values": ["8"]})}, (SMALL, LARGE), None),
        (
            {
                "pod": required(
                    {"key": "kind", "operator": "In", "values": ["t4"]}, {"key": "gen", "operator": "Exists"}
                )
            },
            (SMALL, LARGE),
            16384,
        ),
        ({"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}, (SMALL,), None),
    ],
)
def test_a_gpus_memory(spec: dict[str, Any], nodes: tuple[Any, ...], mib: int | None) -> None:
    found = device_memory(read(stored(accelerator="gpu", **spec)).spec, nodes)
    assert found == (None if mib is None else mib << 20)


def test_a_slice_of_a_gpu_has_a_label_of_its_own() -> None:
    slices = node("mig", 81920)
    slices["metadata"]["labels"]["nvidia.com/mig-1g.10gb.memory"] = "9856"
    slices["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
    spec = read(stored(accelerator="gpu", gpu={"resourceName": "nvidia.com/mig-1g.10gb"})).spec
    assert device_memory(spec, (slices,)) == 9856 << 20


@pytest.mark.parametrize(
    ("limits", "size"), [({"memory": "8Gi"}, 8 * GIB), ({"memory": "500M"}, 500_000_000), ({}, None)]
)
def test_on_cpu_the_containers_limit(limits: dict[str, str], size: int | None) -> None:
    assert device_memory(read(stored(resources={"limits": limits})).spec, (SMALL,)) == size


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"maxModelLen": 512, "engine": {"kvCacheGiB": 0.1, "dtype": "bfloat16", "hostCacheGiB": 2}},
        {"accelerator": "gpu"},
        EVERYTHING,
    ],
    ids=["small", "cpu", "gpu", "everything"],
)
def test_the_job_asks_about_the_spec(spec: dict[str, Any]) -> None:
    """The server's flags go through the Job's parser and come out as what `plan` reads off the spec itself."""
    resource = read(stored(**spec))
    (container,) = job(resource, SETTINGS, Attempt(memory=24 * GIB))["spec"]["template"]["spec"]["containers"]
    args, _ = parser().parse_known_args([*container["command"][2:], *container["args"]])
    assert args.model == resource.spec.model
    assert args.startup_timeout == resource.spec.startup.timeout_seconds
    assert asked(args) == ask_of(resource.spec, 24 * GIB)
