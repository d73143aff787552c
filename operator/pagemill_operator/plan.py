"""What to write so that the world becomes what `render` wants: nothing, when it already is.

Pure: (desired, world) → actions. A child is applied when the hash of what was last applied differs (it covers what was taken out of
a manifest) or when a field that we own reads otherwise than we wrote it (a hand's edit). Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Manifest, ObjectRef
from pagemill_operator.labels import SECRET_ANNOTATION, SPEC_HASH_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.render import stamp
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


@dataclass(frozen=True, slots=True)
class Manage:
    """Ask a pod's management port for something: hot settings, a drain or its end."""

    pod: Manifest
    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set (or, with None, remove) annotations of a pod."""

    pod: Manifest
    annotations: Mapping[str, str | None]


Action = Apply | Delete | Manage | Annotate


def plan(
    owner: Owner | None, desired: Sequence[Manifest], world: World, held: Collection[str] = ()
) -> tuple[Action, ...]:
    """Applies in the order of `desired`, then deletions. Kinds that are `held` are left as they are.

    `owner`: whose children are deleted; None: whoever's, as their labels say that they are ours.
    """
    live = {_identity(child): child for child in world.children}
    wanted = {_identity(found): _as_grown(_stamped(found), live.get(_identity(found))) for found in desired}
    applies = (Apply(manifest) for who, manifest in wanted.items() if not _is_settled(manifest, live.get(who), world))
    deletes = (
        Delete(_ref(child))
        for who, child in live.items()
        if who not in wanted and child["kind"] not in held and _is_ours(child, owner)
    )
    return (*applies, *deletes)


def _is_settled(wanted: Manifest, live: Manifest | None, world: World) -> bool:
    if wanted["kind"] == "Secret":
        return _was_applied(wanted, world)
    if wanted["kind"] == "Job" and live is not None:  # nothing of one can be changed: its name stands for all of it
        return True
    return live is not None and reads_as_written(wanted, live)


def _was_applied(secret: Manifest, world: World) -> bool:
    """A Secret can't be read back: the Deployment says which one it was made after. A pod that finds none says so itself."""
    deployment = world.child("Deployment")
    annotations = {} if deployment is None else deployment["metadata"].get("annotations") or {}
    missed = any(_waits_for(secret["metadata"]["name"], pod) for pod in world.pods)
    return not missed and annotations.get(SECRET_ANNOTATION) == secret["metadata"]["annotations"][SPEC_HASH_ANNOTATION]


def _waits_for(secret: str, pod: Manifest) -> bool:
    """The kubelet names what it lacks; a Secret of the user's own is not ours to make."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    waits = [(status.get("state") or {}).get("waiting") or {} for status in statuses]
    said = [str(one.get("message", "")) for one in waits if one.get("reason") == "CreateContainerConfigError"]
    return any(f'"{secret}"' in words or words.endswith(f"/{secret}") for words in said)


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
    metadata, stamped = manifest["metadata"], {SPEC_HASH_ANNOTATION: stamp(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **stamped}}}


def _is_ours(child: Manifest, owner: Owner | None) -> bool:
    """A claim that is to be retained has no owner and stays."""
    references: Sequence[dict[str, Any]] = child["metadata"].get("ownerReferences") or ()
    deleting = "deletionTimestamp" in child["metadata"]
    return not deleting and (owner is None or any(reference["uid"] == owner.uid for reference in references))


def _identity(manifest: Manifest) -> tuple[str, str]:
    return (manifest["kind"], manifest["metadata"]["name"])


def _ref(manifest: Manifest) -> ObjectRef:
    metadata = manifest["metadata"]
    return ObjectRef(manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])
