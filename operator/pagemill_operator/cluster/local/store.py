"""The objects of a cluster of one machine, in memory, with what Kubernetes' API server does to them.

Owns uid, resourceVersion, generation, creationTimestamp, the removal of owned objects with their owner, and who is told of a
change. Knows nothing of what the objects mean: that is for `controllers` and `pod`. Objects are replaced, never changed in place.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import DEPLOYMENT_LABEL, KIND

Listener = Callable[["Change"], None]
_CLUSTER_OWNED = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Change:
    """One object before and after: `old` is None for a new one, `new` for one that is gone."""

    kind: str
    old: Manifest | None
    new: Manifest | None


class ObjectStore:
    """Keyed by (kind, namespace, name)."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._version = 0
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change, in the order of the changes. It must not raise."""
        self._listeners.append(listener)

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._objects.get((kind, namespace, name))

    def all(self, kind: str) -> tuple[Manifest, ...]:
        return tuple(found for (found_kind, _, _), found in self._objects.items() if found_kind == kind)

    def owned_by(self, owner: Manifest, kind: str) -> tuple[Manifest, ...]:
        """Objects of `kind` whose ownerReferences name `owner`."""
        return tuple(found for found in self.all(kind) if owner["metadata"]["uid"] in _owner_uids(found))

    def of_deployment(self, namespace: str, name: str, kind: str) -> tuple[Manifest, ...]:
        """Objects of `kind` that carry the label of the LLMDeployment `name`."""
        return tuple(
            found
            for found in self.all(kind)
            if found["metadata"].get("namespace") == namespace
            and (found["metadata"].get("labels") or {}).get(DEPLOYMENT_LABEL) == name
        )

    def apply(self, manifest: Manifest) -> Manifest:
        """Create the object or replace all of it but its status and what the cluster owns; no change, no new version."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        old = self._objects.get(key)
        if old is None:
            new = {
                **manifest,
                "metadata": {**metadata, "uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": now()},
            }
        else:
            kept = {name: old["metadata"][name] for name in _CLUSTER_OWNED if name in old["metadata"]}
            new = {**manifest, "metadata": {**metadata, **kept}}
            if "status" in old:
                new["status"] = old["status"]
            if new == old:
                return old
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
        return self._put(key, old, new)

    def set_status(self, target: Manifest, status: Mapping[str, Any]) -> None:
        """Replace the status of an object that may be gone meanwhile."""
        key = _key(target)
        old = self._objects.get(key)
        if old is not None and old.get("status") != status:
            self._put(key, old, {**old, "status": dict(status)})

    def mark_deleted(self, target: Manifest) -> None:
        """Set deletionTimestamp: the object goes when whoever runs it calls `remove`."""
        key = _key(target)
        old = self._objects.get(key)
        if old is not None and "deletionTimestamp" not in old["metadata"]:
            self._put(key, old, {**old, "metadata": {**old["metadata"], "deletionTimestamp": now()}})

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete in the background: the object goes at once (a pod when its process has ended), then what it owns."""
        found = self._objects.get((kind, namespace, name))
        if found is None:
            return
        if kind == "Pod":
            self.mark_deleted(found)
        else:
            self.remove(found)

    def remove(self, target: Manifest) -> None:
        """Take the object out and delete everything that it owns."""
        old = self._objects.pop(_key(target), None)
        if old is None:
            return
        self._notify(Change(old["kind"], old, None))
        for owned in [found for found in self._objects.values() if old["metadata"]["uid"] in _owner_uids(found)]:
            self.delete(owned["kind"], owned["metadata"]["namespace"], owned["metadata"]["name"])

    def _put(self, key: tuple[str, str, str], old: Manifest | None, new: dict[str, Any]) -> Manifest:
        self._version += 1
        new["metadata"] = {**new["metadata"], "resourceVersion": str(self._version)}
        self._objects[key] = new
        self._notify(Change(key[0], old, new))
        return new

    def _notify(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change)


def deployment_of(found: Manifest) -> tuple[str, str] | None:
    """(namespace, name) of the LLMDeployment that an object is or belongs to."""
    metadata = found["metadata"]
    name = metadata["name"] if found["kind"] == KIND else (metadata.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return (metadata["namespace"], name) if name else None


def now() -> str:
    """The time as Kubernetes writes it: seconds, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(found: Manifest) -> tuple[str, str, str]:
    return (found["kind"], found["metadata"]["namespace"], found["metadata"]["name"])


def _owner_uids(found: Manifest) -> Iterator[str]:
    for reference in found["metadata"].get("ownerReferences") or ():
        yield reference["uid"]
