"""What to write so that the world becomes what `render` wants: nothing, when it already is.

Pure: (desired, world) → actions. A child is applied when the hash of what was last applied differs (it covers what was taken out of
a manifest) or when a field that we own reads otherwise than we wrote it (a hand's edit). Called by `reconcile`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Manifest, ObjectRef
from pagemill_operator.labels import SPEC_HASH_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.resource import Owner
from pagemill_operator.same import amount, reads_as_written


@dataclass(frozen=True, slots=True)
class Apply:
    """Write a child by server-side apply."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a child that the spec no longer asks for."""

    ref: ObjectRef


Action = Apply | Delete


def plan(owner: Owner, desired: Sequence[Manifest], world: World) -> tuple[Action, ...]:
    """Applies in the order of `desired`, then deletions."""
    live = {_identity(child): child for child in world.children}
    wanted = {_identity(found): _as_grown(_stamped(found), live.get(_identity(found))) for found in desired}
    applies = (Apply(manifest) for who, manifest in wanted.items() if not _is_settled(manifest, live.get(who)))
    deletes = (Delete(_ref(child)) for who, child in live.items() if who not in wanted and _is_ours(child, owner))
    return (*applies, *deletes)


def _is_settled(wanted: Manifest, live: Manifest | None) -> bool:
    return live is not None and reads_as_written(wanted, live)


def _as_grown(manifest: Manifest, live: Manifest | None) -> Manifest:
    """A claim's storage can't shrink: what a hand or a volume autoscaler has enlarged is wanted as it is."""
    if live is None or manifest["kind"] != "PersistentVolumeClaim":
        return manifest
    requested, found = _storage(manifest), _storage(live)
    if found is None or (amount(found) or 0) <= (amount(requested) or 0):
        return manifest
    return {**manifest, "spec": {**manifest["spec"], "resources": {"requests": {"storage": found}}}}


def _storage(claim: Manifest) -> str | None:
    requests: dict[str, str] = (claim["spec"].get("resources") or {}).get("requests") or {}
    return requests.get("storage")


def _stamped(manifest: Manifest) -> Manifest:
    """With the hash of itself among its annotations."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    stamp = {SPEC_HASH_ANNOTATION: hashlib.sha256(text.encode()).hexdigest()[:16]}
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **stamp}}}


def _is_ours(child: Manifest, owner: Owner) -> bool:
    """A claim that is to be retained has no owner and stays."""
    references: Sequence[dict[str, Any]] = child["metadata"].get("ownerReferences") or ()
    deleting = "deletionTimestamp" in child["metadata"]
    return not deleting and any(reference["uid"] == owner.uid for reference in references)


def _identity(manifest: Manifest) -> tuple[str, str]:
    return (manifest["kind"], manifest["metadata"]["name"])


def _ref(manifest: Manifest) -> ObjectRef:
    metadata = manifest["metadata"]
    return ObjectRef(manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])
