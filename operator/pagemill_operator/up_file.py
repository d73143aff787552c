"""The file of `pagemill up` as one machine takes it: in a namespace, and without what only a cluster has.

Pure but for reading the file. Called by `up_command` at its start and whenever the file changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pagemill import model_ref
from pagemill_operator.cluster.interface import Key, Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.manifest_file import load_manifests
from pagemill_operator.resource import read

DEFAULT_NAMESPACE = "default"
MOST_REPLICAS = 64  # each is a process that holds the whole model


def load(path: str) -> dict[Key, Manifest]:
    """The file's LLMDeployments in its order. Raises InvalidManifest, which also says what needs a cluster."""
    wanted: dict[Key, Manifest] = {key_of(manifest): manifest for manifest in map(_in_namespace, load_manifests(path))}
    problems = tuple(problem for manifest in wanted.values() for problem in _needs_a_cluster(path, manifest))
    if problems:
        raise InvalidManifest(problems)
    return wanted


def key_of(manifest: Manifest) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _in_namespace(manifest: Manifest) -> dict[str, Any]:
    """What a cluster says of itself (status, uid, generation, a deletion) is left out: here it is written anew."""
    given = manifest["metadata"]
    metadata = {name: given[name] for name in ("name", "labels", "annotations") if given.get(name) is not None}
    metadata["namespace"] = given.get("namespace") or DEFAULT_NAMESPACE
    return {**{name: value for name, value in manifest.items() if name != "status"}, "metadata": metadata}


def _needs_a_cluster(path: str, manifest: Manifest) -> Iterator[str]:
    spec, name = read(manifest).spec, manifest["metadata"]["name"]
    where = f"{path}: {name}: spec"
    if model_ref.parse(spec.model).kind in ("pvc", "oci"):
        yield f"{where}.model: {spec.model} can only be mounted by a cluster: on one machine use org/name or file:///path"
    if (spec.replicas or 0) > MOST_REPLICAS:
        yield f"{where}.replicas: {spec.replicas} are too many for one machine: at most {MOST_REPLICAS}"
    if spec.api_keys_secret_ref is not None:
        yield f"{where}.apiKeysSecretRef: a Secret can only be mounted by a cluster: on one machine remove it"
    if (scaling := spec.autoscaling) is not None:
        if scaling.engine != "Operator":
            yield f"{where}.autoscaling.engine: {scaling.engine} needs a cluster's /scale: on one machine leave it to Operator"
        if scaling.max_replicas > MOST_REPLICAS:
            yield f"{where}.autoscaling.maxReplicas: {scaling.max_replicas} are too many for one machine: at most {MOST_REPLICAS}"
        if scaling.prometheus is not None and scaling.prometheus.bearer_token_secret_ref is not None:
            yield f"{where}.autoscaling.prometheus.bearerTokenSecretRef: a Secret can only be read in a cluster: remove it"
    if spec.scheduling.policy_config_map is not None:
        yield f"{where}.scheduling.policyConfigMap: can only be mounted by a cluster: on one machine use PYTHONPATH"
    for field, used in (("volumes", spec.pod.volumes), ("volumeMounts", spec.pod.volume_mounts)):
        if used:
            yield f"{where}.pod.{field}: can only be mounted by a cluster: on one machine remove it"
