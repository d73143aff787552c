"""One reconcile, straight through: resource → observe → scaling → preflight → steer → render → plan → apply → status.

Level-triggered: whatever happened, look at the whole and take the next steps. The stages are pure but for `observe` and `apply`,
and the clock is an argument. A spec that can't be read or served is said in the status; what runs is left as it is.
"""

from __future__ import annotations

from datetime import datetime

from pagemill_operator.announce import announce
from pagemill_operator.apply import Refusal, apply
from pagemill_operator.cluster.interface import Cluster, Key, Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.events import events
from pagemill_operator.fleet import standing, survey, wanted_of
from pagemill_operator.lead import lead
from pagemill_operator.observe import observe
from pagemill_operator.pending import pending
from pagemill_operator.plan import plan
from pagemill_operator.preflight import PASSED, preflight
from pagemill_operator.render import render
from pagemill_operator.resource import Resource, deleting, owner_of, read
from pagemill_operator.scaling import UNSCALED, scale
from pagemill_operator.scaling_memory import Memories
from pagemill_operator.settings import Settings
from pagemill_operator.status import changes, look_again, refused, status
from pagemill_operator.steer import NOTHING, follow_up, questions, stay, steer
from pagemill_operator.supported import unsupported
from pagemill_operator.waiting import Trouble
from pagemill_operator.way import DIRECT


async def reconcile(
    cluster: Cluster, key: Key, now: datetime, settings: Settings, memories: Memories | None = None
) -> float | None:
    """One look and the next steps. Returns the seconds until another look is worth it; None: only on events.

    `memories`: what scaling remembers; without, each look is the first."""
    memories = memories if memories is not None else Memories()
    manifest = await cluster.resource(key)
    if manifest is None or deleting(manifest):
        memories.forget(key)
        return None
    owner, previous = owner_of(manifest), manifest.get("status") or {}
    resource, refusal = _accept(manifest)
    accepted = resource if refusal is None else None
    world = await observe(cluster, key, questions(accepted) if accepted is not None else None)
    refusals: tuple[Refusal, ...] = ()
    before, steering, way, scaled = PASSED, NOTHING, DIRECT, UNSCALED
    if accepted is not None:
        scaled = scale(accepted, world, previous, memories.of(key), now)
        memories.keep(key, scaled)
        accepted = scaled.accepted(accepted)
        wanted = wanted_of(accepted)
        before = preflight(accepted, world, settings, now)
        fleet = survey(wanted, world, now)
        steering, way = steer(accepted, fleet, world, now), lead(accepted, world, fleet, now, settings)
        live = world.child("Deployment")
        desired = render(accepted, settings, live, before, steering.replicas, steering.allowance, way)
        held = () if before.passed else ("Deployment",)
        refusals = await apply(cluster, (*plan(owner, desired, world, held), *steering.actions))
        refusal, beside = refused(refusals, way.trouble, wanted.replicas)
    else:
        wanted, beside = standing(world), ()
        steering = stay(survey(wanted, world, now), world)
        refusals = await apply(cluster, steering.actions)
    fleet = survey(wanted, world, now)
    spec = resource.spec if resource is not None else None
    missing = pending(accepted.spec, fleet, world) if accepted is not None else None
    new = status(
        owner, spec, fleet, world, refusal, previous, now, before=before, beside=beside, missing=missing, scaled=scaled
    )
    if changed := changes(new, previous):
        await announce(cluster, events(owner, previous, new, now))
        await cluster.patch_status(key, changed)
    again = look_again(fleet, new.get("capacity"), bool(refusals), settings)
    sooner = (again, before.again, way.again, follow_up(steering, refusals, settings), scaled.again(settings))
    return min((one for one in sooner if one is not None), default=None)


def _accept(manifest: Manifest) -> tuple[Resource | None, Trouble | None]:
    """The typed resource, and why it is not served as it stands."""
    try:
        resource = read(manifest)
    except InvalidManifest as error:
        return None, Trouble("InvalidSpec", "; ".join(error.problems))
    lines = unsupported(resource.spec)
    return resource, Trouble("UnsupportedField", "; ".join(lines)) if lines else None
