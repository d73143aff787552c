"""What the reconcile needs of a cluster: a dozen calls over plain manifests. `kubernetes` and `local` implement it.

Manifests are the dicts that YAML would give, read-only to whoever gets them. The reconcile never learns which cluster it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.samples import Answer
from pagemill_operator.spec_scaling import Prometheus

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

    `retry_after`: seconds that the API server asks to be left alone for (429), else 0. `exists`: what was to be made is
    there already (409).
    """

    def __init__(self, message: str, *, refused: bool = False, retry_after: float = 0.0, exists: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.retry_after = retry_after
        self.exists = exists


class NameTaken(ClusterError):
    """A child's name belongs to an object that the operator has not made."""

    def __init__(self) -> None:
        super().__init__("there is one that the operator has not made: delete or rename one of the two", refused=True)


class NoSuchKind(ClusterError):
    """The API does not have a kind: a CRD that the deployment asks for is not installed."""

    def __init__(self, kind: str, api_version: str) -> None:
        super().__init__(f"the cluster has no {kind} ({api_version}): install its CRD", refused=True)


class Cluster(Protocol):
    """Reads come from a cache that may lag behind; whatever is missed is mended by the event that brings the cache up to date."""

    async def resource(self, key: Key) -> Manifest | None:
        """The LLMDeployment, or None when it is gone."""
        ...

    async def resources(self, namespace: str) -> tuple[Manifest, ...]:
        """Every LLMDeployment of a namespace, in the order of their names."""
        ...

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        """Objects of `kind` ("Deployment", "Pod", "Service", "PersistentVolumeClaim", "Event" …) that belong to
        the LLMDeployment: labelled `pagemill.dev/deployment: <name>`; for Event, those about its pods and replica sets."""
        ...

    async def nodes(self) -> tuple[Manifest, ...]:
        """All nodes; empty where they can't be seen (an operator that is held to namespaces, one machine)."""
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply, one field manager, forced. NameTaken where the name is another's, NoSuchKind where there is no CRD."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Background propagation. An object that is gone already is no error."""
        ...

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        """Server-side apply or merge of /status; the caller has seen to it that something changed."""
        ...

    async def annotate(self, pod: Manifest, annotations: Mapping[str, str | None]) -> None:
        """Merge into a pod's annotations; None removes one. A pod that is gone is no error."""
        ...

    async def post_event(self, event: Manifest) -> None:
        """Make a core/v1 Event. One of that name that is there already is no error: it has been said."""
        ...

    async def probe(self, pod: Manifest, path: str, port: int = SERVING_PORT) -> Probe:
        """GET a path of one of the pod's ports, within two seconds. Never raises."""
        ...

    async def metrics(self, pod: Manifest) -> str | None:
        """What /metrics of the pod's serving port says, within two seconds; None where it does not answer. Never raises."""
        ...

    async def held(self, key: Key) -> int | None:
        """Requests for the LLMDeployment that wait for a replica: so many at least; None where nobody could say. Never raises."""
        ...

    async def query(self, namespace: str, prometheus: Prometheus, queries: Mapping[str, str]) -> Mapping[str, Answer]:
        """What Prometheus answers now to each query, asked with the namespace's token where the spec names one. Never raises."""
        ...

    async def manage(self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None = None) -> Probe:
        """Ask the pod's management port, with its deployment's token, within two seconds. Never raises."""
        ...
