"""What the reconcile needs of a cluster: six calls over plain manifests. `kubernetes` and `local` implement it.

Manifests are the dicts that YAML would give, read-only to whoever gets them. The reconcile never learns which cluster it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One LLMDeployment: what the queue holds and a reconcile is about."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """One object of any kind."""

    api_version: str  # "apps/v1", "v1"
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a pod's HTTP endpoint answered. `status` 0: it did not answer (refused, timed out, no address yet)."""

    status: int
    body: Mapping[str, Any]  # its JSON object; {} when it sent none


class ClusterError(Exception):
    """A call that failed. `refused` is true where repeating it can't help (403, 422): the message goes into the status.

    `retry_after`: seconds that the API server asks to be left alone for (429), else 0.
    """

    def __init__(self, message: str, *, refused: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.refused = refused
        self.retry_after = retry_after


class NameTaken(ClusterError):
    """A child's name belongs to an object that the operator has not made."""

    def __init__(self) -> None:
        super().__init__("there is one that the operator has not made: delete or rename one of the two", refused=True)


class Cluster(Protocol):
    """Reads come from a cache that may lag behind; whatever is missed is mended by the event that brings the cache up to date."""

    async def resource(self, key: Key) -> Manifest | None:
        """The LLMDeployment, or None when it is gone."""
        ...

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        """Objects of `kind` ("Deployment", "ReplicaSet", "Pod", "Service", "PersistentVolumeClaim", "Event" …) that belong to
        the LLMDeployment: labelled `pagemill.dev/deployment: <name>`; for Event, those about its pods and replica sets."""
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply, one field manager, forced. NameTaken where the name is another's."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Background propagation. An object that is gone already is no error."""
        ...

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        """Server-side apply or merge of /status; the caller has seen to it that something changed."""
        ...

    async def probe(self, pod: Manifest, path: str) -> Probe:
        """GET a path of the pod's serving port, within two seconds. Never raises."""
        ...
