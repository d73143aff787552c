"""The spec's `pod` and `resources`: a short list of Kubernetes' own pod fields, most handed through as they are.

A whole PodTemplateSpec would make the CRD larger than an annotation may be, and would let a user undo what the operator needs.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pagemill_operator.fields import PRESERVE, Group, ObjectName, Passthrough, Quantity, restart
from pagemill_operator.labels import GROUP, MANAGED_BY_LABEL, NAME_LABEL


class NamedReference(Group):
    """An object of the same namespace, by its name."""

    name: ObjectName = restart("Its name.", ...)


class Resources(Group):
    """As in a container; quantities are strings ("2", "500m", "8Gi"). GPUs are asked for by `gpu`."""

    requests: dict[str, Quantity] = restart("What is kept free for a replica.", {})
    limits: dict[str, Quantity] = restart("What a replica may use at most.", {})


def _not_ours(labels: dict[str, str]) -> dict[str, str]:
    for name in labels:
        if name in (MANAGED_BY_LABEL, NAME_LABEL) or name.partition("/")[0] == GROUP:
            raise ValueError(f"{name} is the operator's own")
    return labels


def _keyed(*keys: str) -> AfterValidator:
    """Entries of a list that must at least say these keys; the rest is Kubernetes'."""

    def check(entry: dict[str, Any]) -> dict[str, Any]:
        for key in keys:
            if not isinstance(entry.get(key), str) or not entry[key]:
                raise ValueError(f"{key} is missing")
        if not isinstance(entry.get("value", ""), str):
            raise ValueError("value must be a string (put it in quotes)")
        if "\0" in entry.get("value", "") or "\0" in entry["name"]:
            raise ValueError("must be without NUL characters: no process can be given one")
        return entry

    return AfterValidator(check)


def _entry(*keys: str, **optional: Any) -> Any:
    """The schema of such an entry."""
    texts: dict[str, Any] = {key: {"type": "string", "minLength": 1} for key in keys}
    schema: dict[str, Any] = {"required": list(keys), "properties": {**texts, **optional}}
    return Field(json_schema_extra={**PRESERVE, **schema})


# An unquoted number as a variable's value is so common a mistake that it is refused here, not by the Deployment.
EnvVar = Annotated[dict[str, Any], _keyed("name"), _entry("name", value={"type": "string"})]
Volume = Annotated[dict[str, Any], _keyed("name"), _entry("name")]
VolumeMount = Annotated[dict[str, Any], _keyed("name", "mountPath"), _entry("name", "mountPath")]
Metadata = Annotated[dict[str, str], AfterValidator(_not_ours)]


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _readable(affinity: dict[str, Any]) -> dict[str, Any]:
    """What of it the preflight reads, to find the nodes that a replica could go to; the rest is Kubernetes' to check."""
    nodes = _mapping(affinity, "nodeAffinity")
    _mappings(nodes, _PREFERRED)
    for term in _mappings(_mapping(nodes, _REQUIRED), "nodeSelectorTerms"):
        for rule in (*_mappings(term, "matchExpressions"), *_mappings(term, "matchFields")):
            values = rule.get("values") or []
            if not isinstance(values, list) or not all(isinstance(text, str) for text in (rule.get("key"), *values)):
                raise ValueError("nodeAffinity: the key and the values of an expression must be strings")
    return affinity


def _mapping(found: dict[str, Any], name: str) -> dict[str, Any]:
    inner = found.get(name)
    if inner is not None and not isinstance(inner, dict):
        raise ValueError(f"{name} must be a mapping")
    return inner or {}


def _mappings(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    inner = found.get(name)
    if inner is not None and not (isinstance(inner, list) and all(isinstance(one, dict) for one in inner)):
        raise ValueError(f"{name} must be a list of mappings")
    return inner or []


OWNED_VOLUMES = ("tmp", "shm", "models", "model", "api-keys", "settings", "policy")


def _other_names(volumes: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    for volume in volumes:
        if volume["name"] in OWNED_VOLUMES:
            raise ValueError(f"the name {volume['name']} is the operator's own: choose another")
    return volumes


class Pod(Group):
    """What else Kubernetes should know of the pods."""

    node_selector: dict[str, str] = restart("Labels that a node must have.", {})
    tolerations: tuple[Passthrough, ...] = restart("As in a pod.", (), max_length=64)
    affinity: Annotated[Passthrough, AfterValidator(_readable)] | None = restart("As in a pod.")
    topology_spread_constraints: tuple[Passthrough, ...] = restart("As in a pod.", (), max_length=16)
    env: tuple[EnvVar, ...] = restart("Further environment variables of the server.", (), max_length=128)
    env_from: tuple[Passthrough, ...] = restart("As in a container.", (), max_length=32)
    volumes: Annotated[tuple[Volume, ...], AfterValidator(_other_names)] = restart(
        "Further volumes of the pod.", (), max_length=32
    )
    volume_mounts: tuple[VolumeMount, ...] = restart("Where the server sees them.", (), max_length=32)
    labels: Metadata = restart("Further labels of the pods.", {})
    annotations: Metadata = restart("Further annotations of the pods.", {})
    service_account_name: ObjectName | None = restart(
        "A service account that exists; left out, the operator makes one."
    )
    runtime_class_name: ObjectName | None = restart("As in a pod.")
    priority_class_name: ObjectName | None = restart("As in a pod.")
    security_context: Passthrough = restart("The pod's, over the operator's own (non-root, user 65532).", {})
    shm_size_mib: int = restart("Size of /dev/shm in MiB.", 1024, ge=1, le=1048576, alias="shmSizeMiB")
