"""One reconcile, straight through: resource → observe → render → plan → apply → status.

Level-triggered: whatever happened, look at the whole and take the next steps. The stages are pure but for `observe` and `apply`,
and the clock is an argument. A spec that can't be read or served is said in the status; what runs is left as it is.
"""

from __future__ import annotations

from datetime import datetime

from pagemill_operator.apply import apply
from pagemill_operator.cluster.interface import Cluster, Key, Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.fleet import standing, survey, wanted_of
from pagemill_operator.observe import observe
from pagemill_operator.plan import plan
from pagemill_operator.render import render
from pagemill_operator.resource import Resource, deleting, owner_of, read
from pagemill_operator.settings import Settings
from pagemill_operator.status import changes, look_again, status
from pagemill_operator.supported import unsupported
from pagemill_operator.waiting import Trouble


async def reconcile(cluster: Cluster, key: Key, now: datetime, settings: Settings) -> float | None:
    """One look and the next steps. Returns the seconds until another look is worth it; None: only on events."""
    manifest = await cluster.resource(key)
    if manifest is None or deleting(manifest):
        return None
    owner, previous = owner_of(manifest), manifest.get("status") or {}
    resource, refusal = _accept(manifest)
    world = await observe(cluster, key)
    refusals: tuple[str, ...] = ()
    if resource is not None and refusal is None:
        desired = render(resource, settings, world.child("Deployment"))
        refusals = await apply(cluster, plan(owner, desired, world))
        wanted = wanted_of(resource)
        refusal = Trouble("ApplyRefused", "the cluster refuses " + "; ".join(refusals)) if refusals else None
    else:
        wanted = standing(world)
    fleet = survey(wanted, world, now)
    spec = resource.spec if resource is not None else None
    new = status(owner, spec, fleet, world, refusal, previous, now)
    if changed := changes(new, previous):
        await cluster.patch_status(key, changed)
    return look_again(fleet, new.get("capacity"), bool(refusals), settings)


def _accept(manifest: Manifest) -> tuple[Resource | None, Trouble | None]:
    """The typed resource, and why it is not served as it stands."""
    try:
        resource = read(manifest)
    except InvalidManifest as error:
        return None, Trouble("InvalidSpec", "; ".join(error.problems))
    lines = unsupported(resource.spec)
    return resource, Trouble("UnsupportedField", "; ".join(lines)) if lines else None
