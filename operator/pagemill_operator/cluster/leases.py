"""The operator's Lease in the API: `lease.LeaseStore` over coordination.k8s.io/v1.

It goes over a connection of its own: neither the worker's calls nor what the API server asks of them may hold a renewal up.
`LEASE_RULE` is what the account needs in the Lease's namespace. Used by `__main__`.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Any

from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.cluster.kinds import Rule
from pagemill_operator.lease import Lease

LEASE_NAME = "pagemill-operator"
LEASE_RULE = Rule("coordination.k8s.io", "leases", ("get", "create", "update"))
_API_VERSION = "coordination.k8s.io/v1"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ApiLease:
    """One Lease by name."""

    def __init__(self, api: Api, namespace: str, name: str = LEASE_NAME) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._collection = f"/apis/{_API_VERSION}/namespaces/{namespace}/leases"

    async def read(self) -> Lease | None:
        found = await self._api.call("GET", f"{self._collection}/{self._name}")
        return None if found is None else lease_of(found)

    async def write(self, lease: Lease) -> Lease:
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease.version:
            metadata["resourceVersion"] = lease.version  # refused (409) where another has written since
            method, path = "PUT", f"{self._collection}/{self._name}"
        else:
            method, path = "POST", self._collection
        spec = {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": round(lease.seconds),
            "acquireTime": lease.acquired,
            "renewTime": lease.renewed,
            "leaseTransitions": lease.transitions,
        }
        body = {"apiVersion": _API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
        written = await self._api.call(method, path, body=body)
        if written is None:
            raise ClusterError(f"{method} {path}: 404: there is no namespace {self._namespace}, or the Lease went away")
        return lease_of(written)


def lease_of(found: dict[str, Any]) -> Lease:
    """From the API's object, whoever wrote it: what is left out counts as a Lease that nobody holds."""
    spec = found.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        seconds=float(spec.get("leaseDurationSeconds") or 1),
        acquired=spec.get("acquireTime") or spec.get("renewTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
        version=found["metadata"]["resourceVersion"],
    )


def own_namespace() -> str | None:
    """The namespace of the pod that this process runs in; None outside of pods."""
    try:
        return _NAMESPACE_FILE.read_text().strip() or None
    except OSError:
        return None


def identity() -> str:
    """The pod's name, and what tells this process from the next one in the same pod."""
    return f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
