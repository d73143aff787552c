"""What the operator knows of the cluster: the newest version seen of every object that concerns it.

Fed by watch events, by the answers to the operator's own writes and by the resync's lists; read by the reconcile. An older
version never replaces a newer one. Knows no API and no kopf.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pagemill_operator.cluster.hearing import Hearing
from pagemill_operator.cluster.interface import Key, Manifest, ObjectRef
from pagemill_operator.cluster.kinds import FOLLOWED
from pagemill_operator.labels import DEPLOYMENT_LABEL, KIND

_TOLD = frozenset(kind.kind for kind in FOLLOWED)  # kinds of which events tell
_Id = tuple[str, str, str]  # kind, namespace, name


class ObjectCache:
    """Objects by kind and LLMDeployment."""

    def __init__(self) -> None:
        self._objects: dict[_Id, Manifest] = {}
        self._by_key: dict[Key, set[_Id]] = {}
        self._resources: dict[str, dict[str, Manifest]] = {}  # LLMDeployments by namespace and name
        self.hearing = Hearing()

    def resource(self, key: Key) -> Manifest | None:
        return self._objects.get((KIND, key.namespace, key.name))

    def resources(self) -> Iterable[Manifest]:
        """Every LLMDeployment."""
        return [found for namespace in self._resources.values() for found in namespace.values()]

    def resources_in(self, namespace: str) -> tuple[Manifest, ...]:
        """Those of a namespace, in the order of their names."""
        found = self._resources.get(namespace, {})
        return tuple(found[name] for name in sorted(found))

    def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        """In the order of their names."""
        found = (identity for identity in self._by_key.get(key, ()) if identity[0] == kind)
        return tuple(self._objects[identity] for identity in sorted(found))

    def keys(self) -> tuple[Key, ...]:
        """Every LLMDeployment, and every one of which only children are left."""
        resources = {Key(namespace, name) for namespace, found in self._resources.items() for name in found}
        return tuple(sorted(resources | {key for key, found in self._by_key.items() if found}))

    def put(self, found: Manifest, *, heard: bool = False) -> Key | None:
        """Keep an object unless a newer version of it is here; the LLMDeployment that it concerns. `heard`: from an event."""
        identity, key = _identity(found), key_of(found)
        old = self._objects.get(identity)
        if key is not None and found["kind"] in _TOLD:
            note = self.hearing.hear if heard else self.hearing.expect
            note(found["kind"], found["metadata"]["uid"], _version(found))
        if old is not None and _same(old, found) and _version(old) > _version(found):
            return key
        if old is not None:
            self._drop(identity, forget=key is None or not _same(old, found))
        if key is not None:
            self._objects[identity] = _slim(found)
            if found["kind"] == KIND:
                self._resources.setdefault(key.namespace, {})[key.name] = self._objects[identity]
            else:
                self._by_key.setdefault(key, set()).add(identity)
        return key

    def remove(self, found: Manifest) -> Key | None:
        """Forget an object, unless another one took its name meanwhile."""
        identity = _identity(found)
        old = self._objects.get(identity)
        if old is not None and _same(old, found):
            self._drop(identity)
        return key_of(found)

    def forget(self, ref: ObjectRef) -> None:
        """Take out what was deleted and no event will speak of."""
        if (identity := (ref.kind, ref.namespace, ref.name)) in self._objects:
            self._drop(identity)

    def identities(self, kind: str) -> frozenset[tuple[str, str]]:
        """(uid, version) of every object of a kind: what `replace` may take out."""
        return frozenset(_stamp(found) for (found_kind, _, _), found in self._objects.items() if found_kind == kind)

    def replace(self, kind: str, listed: Iterable[Manifest], before: frozenset[tuple[str, str]]) -> None:
        """Take over a list of all objects of `kind`. What was here `before` the list was asked for and is not in it is gone."""
        present = set()
        for found in listed:
            self.put(found)
            present.add(found["metadata"]["uid"])
        for identity, found in list(self._objects.items()):
            if identity[0] == kind and _stamp(found) in before and found["metadata"]["uid"] not in present:
                self._drop(identity)

    def _drop(self, identity: _Id, *, forget: bool = True) -> None:
        found = self._objects.pop(identity)
        if forget:
            self.hearing.forget(found["kind"], found["metadata"]["uid"])
        key = key_of(found)
        if key is not None and found["kind"] == KIND:
            self._resources[key.namespace].pop(key.name)
            if not self._resources[key.namespace]:
                del self._resources[key.namespace]
        if key is not None and key in self._by_key:
            self._by_key[key].discard(identity)
            if not self._by_key[key]:
                del self._by_key[key]


def key_of(found: Manifest) -> Key | None:
    """The LLMDeployment that an object is or is labelled with."""
    metadata = found["metadata"]
    name = metadata["name"] if found["kind"] == KIND else (metadata.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return Key(metadata["namespace"], name) if name else None


def _identity(found: Manifest) -> _Id:
    return (found["kind"], found["metadata"]["namespace"], found["metadata"]["name"])


def _stamp(found: Manifest) -> tuple[str, str]:
    return (found["metadata"]["uid"], found["metadata"]["resourceVersion"])


def _same(old: Manifest, new: Manifest) -> bool:
    return bool(old["metadata"]["uid"] == new["metadata"]["uid"])


def _version(found: Manifest) -> int:
    """Kubernetes has promised since 1.35 that versions of one resource are numbers that grow."""
    version = found["metadata"]["resourceVersion"]
    return int(version) if version.isdigit() else 0


def _slim(found: Manifest) -> dict[str, Any]:
    """Without managedFields, which are half of an object and nobody here reads."""
    return {**found, "metadata": {name: value for name, value in found["metadata"].items() if name != "managedFields"}}
