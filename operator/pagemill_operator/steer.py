"""What running replicas are told, and how many there may be meanwhile: hot settings, drains, who goes first, how a rollout goes on.

Pure: (resource, fleet, world, now) → Steering. Called by `reconcile`, between looking and writing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pagemill.hot_settings import digest
from pagemill_operator import hot
from pagemill_operator.apply import SETTINGS, Refusal
from pagemill_operator.fleet import Fleet
from pagemill_operator.hot_settings import settings_of
from pagemill_operator.observe import Questions, Signals, World
from pagemill_operator.plan import Action
from pagemill_operator.queries import signal_queries
from pagemill_operator.render import replicas
from pagemill_operator.resource import Resource
from pagemill_operator.rollout_fields import allowance
from pagemill_operator.scale_down import scale_down, stand
from pagemill_operator.settings import Settings
from pagemill_operator.way import needs_gateway


@dataclass(frozen=True, slots=True)
class Steering:
    """The next steps with what runs."""

    replicas: int  # for the Deployment now: more than are wanted while some of them drain
    actions: tuple[Action, ...] = ()
    allowance: int = 1  # replicas that a rollout may have under way at once
    telling: bool = False  # some are told of new settings
    emptying: bool = False  # some are to go, and run something yet


NOTHING = Steering(0)


def questions(resource: Resource) -> Questions:
    """What replicas are asked beyond their readiness, so that `steer` can tell."""
    spec, settings = resource.spec, digest(settings_of(resource.spec))
    ours, gateway = spec.autoscaling, needs_gateway(spec)
    if ours is None or ours.engine != "Operator" or spec.suspend:
        return Questions(replicas(spec), settings, gateway)
    key = resource.owner.key
    queries = signal_queries(key.namespace, key.name) if ours.prometheus is not None else {}
    return Questions(max(1, ours.min_replicas), settings, gateway, Signals(ours.prometheus, queries, held=gateway))


def steer(resource: Resource, fleet: Fleet, world: World, now: datetime) -> Steering:
    """All of it."""
    leaving = scale_down(resource.spec, fleet, world, now)
    told = tuple(hot.patches(resource.spec, world))
    return Steering(
        replicas=leaving.replicas,
        actions=(*told, *leaving.actions),
        allowance=allowance(resource.spec, fleet),
        telling=bool(told),
        emptying=leaving.under_way,
    )


def stay(fleet: Fleet, world: World) -> Steering:
    """Where the spec is refused: what runs is left as it is, and who was on the way out is called back."""
    back = stand(fleet.wanted.replicas, fleet, world)
    return Steering(back.replicas, actions=back.actions, emptying=back.under_way)


def follow_up(steering: Steering, refusals: Iterable[Refusal], settings: Settings) -> float | None:
    """Seconds until another look is worth it: no event tells how far a drain is, nor that settings were taken over."""
    kinds = {refusal.kind for refusal in refusals}
    if "Pod" in kinds:  # none is marked, so none is emptied
        return settings.refused_seconds
    if steering.telling and SETTINGS in kinds:
        return settings.look_again_seconds if steering.emptying else settings.refused_seconds
    return settings.look_again_seconds if steering.telling or steering.emptying else None
