"""Every leaf of the spec, walked off the CRD, with a change for each: what the tests of tags and of the render go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pagemill_operator import crd
from tests.operator.golden_cases import EVERYTHING


class Leaf(NamedTuple):
    """`path` as in `engine.seed`; a list of groups adds `[]`."""

    path: str
    description: str


def leaves() -> list[Leaf]:
    """All of them, in the CRD's order."""
    schema = crd.document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return list(_walk(schema, ""))


def _walk(schema: dict[str, Any], path: str) -> Iterator[Leaf]:
    for name, node in schema["properties"].items():
        here = f"{path}.{name}".lstrip(".")
        inner = node.get("items", node)
        if "properties" in inner and "x-kubernetes-preserve-unknown-fields" not in inner:
            yield from _walk(inner, here + ("[]" if "items" in node else ""))
        else:
            yield Leaf(here, node.get("description", ""))


# What has to be there before a leaf can be changed, by the beginning of its path.
BASES: dict[str, dict[str, Any]] = {
    "modelCache.existingClaim": {"modelCache": {"existingClaim": "one"}},
    "modelCache": {"modelCache": {"size": "1Gi"}},
    "engine.kvCacheGiB": {"accelerator": "cpu"},
    "hfTokenSecretRef": {"hfTokenSecretRef": {"name": "hub"}},
    "apiKeysSecretRef": {"apiKeysSecretRef": {"name": "clients"}},
    "autoscaling.prometheus.bearerTokenSecretRef.key": {
        "autoscaling": {"maxReplicas": 4, "prometheus": {"url": "http://p", "bearerTokenSecretRef": {"name": "a"}}}
    },
    "autoscaling.wakeTimeoutSeconds": {"autoscaling": {"maxReplicas": 4, "minReplicas": 0}},
    "autoscaling": {"autoscaling": {"maxReplicas": 4, "prometheus": {"url": "http://p"}}},
    "gateway": {"gateway": {"parentRef": {"name": "edge"}}},
    "gateway.endpointPicker": {"gateway": {"parentRef": {"name": "edge"}, "endpointPicker": {"name": "epp"}}},
}
# A value that differs from the base's and from the default. What EVERYTHING sets is taken from there.
VALUES: dict[str, Any] = {
    "schedulingPolicy": "priority",
    "task": "embed",
    "accelerator": "cpu",
    "gpu.count": 2,
    "engine.prefixCaching": True,
    "engine.kvCacheGiB": 2,
    "engine.hostCacheGiB": 8.5,
    "engine.quantization": "fp8",
    "scheduling.agingSeconds": 5,
    "scheduling.ttftMs": 200,
    "scheduling.weights": {"a": 2},
    "scheduling.maxQueuedRequests": 10,
    "scheduling.maxQueuedTokens": 1000,
    "scheduling.policyConfigMap": "policy",
    "autoscaling.minReplicas": 2,
    "autoscaling.maxReplicas": 9,
    "autoscaling.mode": "Recommend",
    "autoscaling.engine": "KEDA",
    "autoscaling.prometheus.url": "http://other",
    "autoscaling.prometheus.bearerTokenSecretRef.name": "b",
    "autoscaling.prometheus.bearerTokenSecretRef.key": "k",
    "autoscaling.targets.kvCacheUsage": 0.5,
    "autoscaling.targets.waitingRequests": 9,
    "autoscaling.targets.runningRatio": 0.5,
    "autoscaling.targets.ttftSeconds": 1,
    "autoscaling.targets.preemptionsPerSecond": 1,
    "autoscaling.scaleUp.podsPerMinute": 3,
    "autoscaling.scaleDown.stabilizationSeconds": 30,
    "autoscaling.scaleDown.podsPerMinute": 3,
    "autoscaling.wakeTimeoutSeconds": 30,
    "rollout.maxFailures": 2,
    "modelCache.existingClaim": "two",
    "apiKeysSecretRef.name": "keys",
    "hfTokenSecretRef.name": "other",
    "routing": "prefix",
    "gateway.parentRef.name": "other",
    "gateway.parentRef.namespace": "infra",
    "gateway.parentRef.sectionName": "https",
    "gateway.hostnames": ["chat.example.com"],
    "gateway.endpointPicker.name": "other",
    "gateway.endpointPicker.port": 9003,
    "gateway.endpointPicker.failureMode": "FailClose",
    "networkPolicy.enabled": True,
    "monitoring.podMonitor": True,
    "suspend": True,
}


def change(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A spec before and after the leaf is changed; KeyError for a leaf that nobody has thought of."""
    fitting = [name for name in BASES if path == name or path.startswith(f"{name}.")]
    base = {"model": "org/name", **(BASES[max(fitting, key=len)] if fitting else {})}
    value = VALUES[path] if path in VALUES else _of(EVERYTHING, path)
    return base, _with(base, path.split("."), value)


def _of(spec: dict[str, Any], path: str) -> Any:
    value: Any = spec
    for part in path.split("."):
        value = value[part.removesuffix("[]")]
        value = value[0] if part.endswith("[]") else value
    return value


def _with(spec: dict[str, Any], parts: list[str], value: Any) -> dict[str, Any]:
    head, *rest = parts
    if head.endswith("[]"):
        return {**spec, head.removesuffix("[]"): [_with({}, rest, value)]}
    return {**spec, head: _with(spec.get(head, {}), rest, value) if rest else value}
