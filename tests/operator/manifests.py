"""LLMDeployments for the operator's tests: one that is right, and a table of those that are wrong.

`REFUSED` is read by the types (test_resource) and by a real API server (tests/cluster), so that both refuse the same mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def manifest(name: str = "chat", namespace: str | None = "team", **spec: Any) -> dict[str, Any]:
    """An LLMDeployment with this spec on top of a model and the CPU."""
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    body = {"model": MODEL, "accelerator": "cpu", **spec}
    return {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": metadata,
        "spec": {key: value for key, value in body.items() if value is not None},
    }


def stored(name: str = "chat", generation: int = 1, **spec: Any) -> dict[str, Any]:
    """The same as an API server holds it."""
    made = manifest(name, **spec)
    made["metadata"] |= {"uid": f"uid-of-{name}", "generation": generation, "resourceVersion": "1"}
    return made


class Mistake(NamedTuple):
    """A spec that is to be refused, and a word that the refusal must hold (of ours; the API server has its own)."""

    spec: Mapping[str, Any]
    says: str


REFUSED: dict[str, Mistake] = {
    "unknown field": Mistake({"replcas": 2}, "spec.replcas: unknown field"),
    "unknown nested field": Mistake({"engine": {"blocksize": 16}}, "spec.engine.blocksize: unknown field"),
    "no model": Mistake({"model": None}, "spec.model: is missing"),
    "model with a blank": Mistake({"model": "org/na me"}, "spec.model: "),
    "another scheme": Mistake({"model": "s3://bucket/model"}, 'spec.model: "s3://bucket/model" does not match'),
    "text for an integer": Mistake({"replicas": "2"}, 'spec.replicas: must be an integer, not "2"'),
    "text for a number": Mistake(
        {"gpuMemoryUtilization": "0.9"}, 'spec.gpuMemoryUtilization: must be a number, not "0.9"'
    ),
    "number for a flag": Mistake({"suspend": 1}, "spec.suspend: must be true or false, not 1"),
    "number for text": Mistake({"image": 3}, "spec.image: must be a string (put it in quotes), not 3"),
    "text for a list": Mistake({"servedModelNames": "chat"}, 'spec.servedModelNames: must be a list, not "chat"'),
    "text for a group": Mistake({"engine": "fast"}, 'spec.engine: must be a mapping, not "fast"'),
    "negative replicas": Mistake({"replicas": -1}, "spec.replicas: must be greater than or equal to 0, not -1"),
    "replicas beyond counting": Mistake({"replicas": 10**20}, "spec.replicas: must be less than or equal to 100000"),
    "length beyond counting": Mistake({"maxModelLen": 2**31}, "spec.maxModelLen: must be less than or equal to"),
    "cache beyond any machine": Mistake(
        {"engine": {"kvCacheGiB": 1e308}}, "spec.engine.kvCacheGiB: must be less than or equal to 1048576"
    ),
    "NUL in a flag": Mistake({"engine": {"extraArgs": ["a\0b"]}}, "spec.engine.extraArgs: must be without NUL"),
    "NUL in a variable": Mistake(
        {"pod": {"env": [{"name": "A", "value": "a\0b"}]}}, "spec.pod.env[0]: must be without NUL"
    ),
    "utilization of zero": Mistake(
        {"gpuMemoryUtilization": 0}, "spec.gpuMemoryUtilization: must be greater than 0, not 0"
    ),
    "utilization above one": Mistake(
        {"gpuMemoryUtilization": 1.01}, "spec.gpuMemoryUtilization: must be less than or equal to 1"
    ),
    "unknown accelerator": Mistake(
        {"accelerator": "tpu"}, "spec.accelerator: must be one of 'gpu' or 'cpu', not \"tpu\""
    ),
    "unknown policy": Mistake({"schedulingPolicy": "lifo"}, 'spec.schedulingPolicy: "lifo" does not match'),
    "unquoted quantity": Mistake({"resources": {"limits": {"cpu": 2}}}, "spec.resources.limits.cpu: must be a string"),
    "no quantity": Mistake(
        {"resources": {"limits": {"memory": "much"}}}, 'spec.resources.limits.memory: "much" does not match'
    ),
    "replicas beside autoscaling": Mistake(
        {"replicas": 2, "autoscaling": {"maxReplicas": 3}}, "spec: replicas and autoscaling exclude each other"
    ),
    "min above max": Mistake(
        {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}}, "spec.autoscaling: minReplicas 4 is above maxReplicas 3"
    ),
    "KEDA without Prometheus": Mistake(
        {"autoscaling": {"maxReplicas": 3, "engine": "KEDA"}},
        "spec.autoscaling: prometheus.url is needed with engine KEDA",
    ),
    "KEDA that looks back for a day": Mistake(
        {
            "autoscaling": {
                "maxReplicas": 3,
                "engine": "KEDA",
                "prometheus": {"url": "http://prometheus"},
                "scaleDown": {"stabilizationSeconds": 86400},
            }
        },
        "spec.autoscaling: scaleDown.stabilizationSeconds is at most 3600 with engine KEDA",
    ),
    "no replica at most": Mistake({"autoscaling": {"maxReplicas": 0}}, "spec.autoscaling.maxReplicas: must be greater"),
    "two claims": Mistake({"modelCache": {"existingClaim": "a", "size": "1Gi"}}, "spec.modelCache: set exactly one"),
    "no claim": Mistake({"modelCache": {}}, "spec.modelCache: set exactly one"),
    "class of an existing claim": Mistake(
        {"modelCache": {"existingClaim": "a", "storageClassName": "fast"}},
        "spec.modelCache: storageClassName, accessMode",
    ),
    "gpu on the cpu": Mistake({"gpu": {"count": 1}}, "spec: gpu belongs to accelerator: gpu"),
    "sized cache on a gpu": Mistake(
        {"accelerator": "gpu", "engine": {"kvCacheGiB": 1}}, "spec: engine.kvCacheGiB is for accelerator: cpu"
    ),
    "variable that is no text": Mistake(
        {"pod": {"env": [{"name": "A", "value": 3}]}}, "spec.pod.env[0]: value must be a string"
    ),
    "variable without a name": Mistake({"pod": {"env": [{"value": "x"}]}}, "spec.pod.env[0]: name is missing"),
}
