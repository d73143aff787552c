"""How much memory a replica's device will have, as far as spec and nodes say. Pure; called by `preflight`.

A GPU's: `gpu.memoryGiB`, else the label that NVIDIA's feature discovery gives a node, of the smallest of those that could take the
pod. On CPU: the container's memory limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagemill.fit_request import GIB
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.same import amount
from pagemill_operator.spec import LLMDeploymentSpec

_MIB = 1 << 20
_KEEPS_OUT = ("NoSchedule", "NoExecute")


def device_memory(spec: LLMDeploymentSpec, nodes: Iterable[Manifest]) -> int | None:
    """Bytes; None where nobody says."""
    if spec.accelerator == "cpu":
        limit = amount(spec.resources.limits.get("memory", ""))
        return int(limit) if limit else None
    if spec.gpu.memory_gib is not None:
        return int(spec.gpu.memory_gib * GIB)
    label = f"{spec.gpu.resource_name}.memory"  # nvidia.com/gpu.memory, nvidia.com/mig-1g.10gb.memory
    found = [_labels(node).get(label, "") for node in nodes if _takes(spec, node)]
    if not found or not all(text.isdigit() for text in found):  # one that says nothing may be the smallest
        return None
    return min(map(int, found)) * _MIB or None


def _takes(spec: LLMDeploymentSpec, node: Manifest) -> bool:
    """Whether the scheduler could put a replica there, room aside. What is not understood here does not rule a node out."""
    labels, pod = _labels(node), spec.pod
    offered = amount(str(((node.get("status") or {}).get("allocatable") or {}).get(spec.gpu.resource_name, "0")))
    return (
        (offered or 0) >= spec.gpu.count
        and all(labels.get(name) == value for name, value in pod.node_selector.items())
        and _matches_affinity(pod.affinity or {}, labels, node["metadata"]["name"])
        and all(_tolerated(taint, spec) for taint in (node.get("spec") or {}).get("taints") or ())
    )


def _labels(node: Manifest) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _tolerated(taint: Mapping[str, Any], spec: LLMDeploymentSpec) -> bool:
    # Who asks for a resource tolerates its taint: clusters add that by themselves (ExtendedResourceToleration).
    if taint.get("effect") not in _KEEPS_OUT or taint.get("key") == spec.gpu.resource_name:
        return True
    return any(
        toleration.get("effect") in (None, "", taint.get("effect"))
        and toleration.get("key") in (None, "", taint.get("key"))
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in spec.pod.tolerations
    )


def _matches_affinity(affinity: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(
        all(_matches(rule, labels) for rule in term.get("matchExpressions") or ())
        and all(_matches(rule, {"metadata.name": name}) for rule in term.get("matchFields") or ())
        for term in terms
    )


def _matches(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule.get("key", "")), rule.get("values") or ()
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as which:
            number, bound = amount(value or ""), amount(str(values[0]) if values else "")
            if number is None or bound is None:
                return False
            return number > bound if which == "Gt" else number < bound
    return True
