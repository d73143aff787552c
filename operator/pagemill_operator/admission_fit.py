"""Whether an LLMDeployment can't fit for certain, from what replicas of the same model have measured.

The operator reads no model, but each status says what the weights take and what the cache holds, and that is the same for the
same model, type and number of GPUs. Only what is certain counts: the activation reserve is left out, so that nothing is refused
that would serve. Pure; called by `admission`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pagemill import model_ref
from pagemill.sizes import format_size
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.pod_state import capacity_of
from pagemill_operator.resource import Resource
from pagemill_operator.spec import LLMDeploymentSpec

GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"  # which the GPU operator's feature discovery puts on a node
GIB, _MIB = 1024**3, 1024**2
_STEP = 64  # tokens; a length that is suggested is rounded down to this


@dataclass(frozen=True, slots=True)
class Measured:
    """One replica's figures: bytes of weights, bytes of cache for a token (0: an encoder has none)."""

    weights: int
    per_token: float


def largest_gpu(nodes: Iterable[Manifest]) -> int | None:
    """Bytes of the largest GPU that a node is labelled with; None where none is. Labels count in MiB."""
    labels = ((node["metadata"].get("labels") or {}).get(GPU_MEMORY_LABEL, "") for node in nodes)
    return max((int(label) * _MIB for label in labels if label.isdigit()), default=None)


def too_large(resource: Resource, others: Iterable[tuple[Resource, Manifest]], memory: int) -> str | None:
    """Why it can't fit a GPU of `memory` bytes, with the numbers and what would; None where it may, or nobody knows."""
    spec = resource.spec
    measured = next(_figures(resource, others), None)
    if spec.accelerator != "gpu" or measured is None:
        return None
    ours = int(memory * spec.gpu_memory_utilization)
    room = max(0, ours - measured.weights)
    length = spec.max_model_len or 1
    if room and room >= length * measured.per_token:
        return None
    fits = int(room / measured.per_token) // _STEP * _STEP if measured.per_token else 0
    advice = f"set maxModelLen to {fits} or less" if fits else "use a larger GPU, or more of them (gpu.count)"
    return (
        f"{spec.model} has weights of {format_size(measured.weights)}, and {spec.gpu_memory_utilization:g} of a GPU of "
        f"{format_size(memory)} are {format_size(ours)}: there is room for {fits} tokens beside them, not for {length}; {advice}"
    )


def _figures(resource: Resource, others: Iterable[tuple[Resource, Manifest]]) -> Iterator[Measured]:
    for other, manifest in others:
        status = manifest.get("status") or {}
        capacity = capacity_of(status.get("capacity"))
        settled = status.get("observedGeneration") == manifest["metadata"].get(
            "generation"
        )  # or it is about a former spec
        if capacity is None or not settled or not _same_model(resource, other):
            continue
        tokens = capacity["maxConcurrentTokens"]
        yield Measured(capacity["weightsBytes"], capacity["kvCacheBytes"] / tokens if tokens else 0.0)


def _same_model(one: Resource, other: Resource) -> bool:
    """What is in a hub is the same everywhere; a claim, a file or an image is one's own namespace's affair."""
    if _shape(one.spec) != _shape(other.spec):
        return False
    return model_ref.parse(one.spec.model).kind == "hub" or one.owner.key.namespace == other.owner.key.namespace


def _shape(spec: LLMDeploymentSpec) -> tuple[Any, ...]:
    """What weights and cache of one replica's GPU depend on, beside the lengths."""
    return (spec.model, spec.accelerator, spec.task, spec.engine.dtype, spec.engine.quantization, spec.gpu.count)
