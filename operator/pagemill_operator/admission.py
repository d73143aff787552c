"""What an optional webhook says of an LLMDeployment at apply time: what its status would say a second later.

Pure: (admission request, the other LLMDeployments, the largest GPU's memory) → Verdict. It judges a change of the spec only, and
refuses it only for what the change brings: an object that is wrong already can be edited, labelled and deleted. What can't be known
here (a model that nobody has loaded, a class in the user's image) is allowed. Called by `__main__` for `admission_server`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill_operator.admission_fit import GIB, too_large
from pagemill_operator.cluster.interface import Key, Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.resource import Resource, deleting, owner_of, read
from pagemill_operator.serve_flags import served_names
from pagemill_operator.supported import unsupported


@dataclass(frozen=True, slots=True)
class Verdict:
    """`refusal` is None where it may be stored; warnings are shown by kubectl in any case."""

    refusal: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """`about` says what is wrong, without the value: the same problem as before is no news."""

    reason: str  # as in the status
    about: str
    text: str

    @property
    def identity(self) -> tuple[str, str]:
        return (self.reason, self.about)


def judge(request: Mapping[str, Any], everybody: Iterable[Manifest], gpu_bytes: int | None) -> Verdict:
    """`request` is an AdmissionReview's. `gpu_bytes`: of the largest GPU that a node is labelled with, if one is."""
    new, old = request.get("object"), request.get("oldObject")
    if (
        request.get("operation") not in ("CREATE", "UPDATE")
        or request.get("subResource")
        or not isinstance(new, Mapping)
    ):
        return Verdict()
    if deleting(new) or (isinstance(old, Mapping) and old.get("spec") == new.get("spec")):
        return Verdict()
    new = _placed(new, request)
    key = owner_of(new).key
    known = tuple(found for found in everybody if owner_of(found).key != key)
    everyone = tuple(known if old is None else (*known, old))
    known_problems = set() if old is None else {one.identity for one in _problems(old, known, everyone)}
    fresh = [one for one in _problems(new, known, everyone) if one.identity not in known_problems]
    if fresh:
        return Verdict("; ".join(f"{one.reason}: {one.text}" for one in fresh))
    return Verdict(None, tuple(_warnings(new, old, everyone, gpu_bytes)))


def _placed(manifest: Mapping[str, Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the namespace, and the name, that the request has and a new object may not have yet."""
    given = manifest.get("metadata") or {}
    metadata = {"namespace": request.get("namespace") or "", **given}
    metadata["name"] = given.get("name") or request.get("name") or f"{given.get('generateName', '')}new"
    return {**manifest, "metadata": metadata}


def _problems(manifest: Manifest, others: Sequence[Manifest], measured: Sequence[Manifest]) -> Iterator[Problem]:
    """`others`: who may have a served name. `measured`: who may know how large the model is; itself as it was, too."""
    try:
        resource = read(manifest)
    except InvalidManifest as error:
        yield from (Problem("InvalidSpec", line.partition(": ")[0], line) for line in error.problems)
        return
    for line in unsupported(resource.spec):
        yield Problem("UnsupportedField", line.partition(" ")[0], line)
    yield from _taken_names(resource, others)
    gib = resource.spec.gpu.memory_gib
    if gib is not None and (text := too_large(resource, _readable(measured), int(gib * GIB))) is not None:
        yield Problem("KVCacheTooSmall", "memory", text)


def _taken_names(resource: Resource, others: Iterable[Manifest]) -> Iterator[Problem]:
    holders: dict[str, Key] = {}
    for other, _ in _readable(others):
        if other.owner.key.namespace == resource.owner.key.namespace:
            holders |= dict.fromkeys(served_names(other), other.owner.key)
    for name in served_names(resource):
        if name in holders:
            advice = "set servedModelNames to names of its own"
            yield Problem("ServedNameTaken", name, f"{holders[name].name} is served as {name} already: {advice}")


def _readable(manifests: Iterable[Manifest]) -> Iterator[tuple[Resource, Manifest]]:
    """Those that the types can read, each with its manifest. What is on its way out has no say."""
    for manifest in manifests:
        if deleting(manifest):
            continue
        try:
            yield read(manifest), manifest
        except InvalidManifest:
            continue


def _warnings(manifest: Manifest, old: Any, measured: Sequence[Manifest], gpu_bytes: int | None) -> Iterator[str]:
    """What is likely and not certain. A label says how large today's GPUs are, and a larger node may come."""
    try:
        resource = read(manifest)
    except InvalidManifest:
        return
    policy, before = resource.spec.scheduling_policy, ((old or {}).get("spec") or {}).get("schedulingPolicy")
    if ":" in policy and policy != before:
        yield f"schedulingPolicy {policy}: only the server can tell whether its image, or policyConfigMap, has that class"
    cache, replicas = resource.spec.model_cache, resource.spec.replicas or 1
    if cache is not None and cache.size is not None and cache.access_mode != "ReadWriteMany" and replicas > 1:
        mode = cache.access_mode or "ReadWriteOnce"
        yield f"modelCache of {mode} with {replicas} replicas: they can only run where it is mounted; use ReadWriteMany"
    likely = gpu_bytes if resource.spec.gpu.memory_gib is None else None
    if likely is not None and (text := too_large(resource, _readable(measured), likely)) is not None:
        yield f"MemoryFit: {text}"
