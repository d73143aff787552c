"""Who goes when fewer replicas are wanted, and when: the ones with the least running work, each drained before it is let go.

Pure and level-triggered: everything follows from what pods say of themselves and from one annotation that says since when a pod
is being emptied, so an operator that ends half-way is taken up by the next. A victim is marked, told to drain, priced so that
Kubernetes takes it and no other, and only then counted out of the Deployment's replicas. To zero, and while a rollout is under way,
replicas are lowered at once: a SIGTERM drains all the same. Called by `steer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pagemill.endpoints import DRAIN_PATH
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.fleet import Fleet
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DRAIN_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.plan import Action, Annotate, Manage
from pagemill_operator.pod_state import DRAINING, PodState
from pagemill_operator.render import replicas
from pagemill_operator.render_kept import template_annotation
from pagemill_operator.render_pod import CONTAINER, GRACE_MARGIN, UNREADY_SECONDS
from pagemill_operator.spec import LLMDeploymentSpec

FIRST_TO_GO = "-1000"  # a deletion cost; everybody else's is 0
_UNANSWERED = timedelta(seconds=15)  # a management port that says nothing for so long holds up nobody
_BUSIEST = 1 << 31  # of whom it isn't known what runs


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """The Deployment's replicas for now, and what pods are told."""

    replicas: int
    actions: tuple[Action, ...] = ()
    under_way: bool = False


@dataclass(frozen=True, slots=True)
class _Replica:
    """One pod that could go."""

    state: PodState
    pod: Manifest
    drain: Mapping[str, Any] | None  # what GET /drain answered; None: nothing

    @property
    def since(self) -> datetime | None:
        """When its drain was asked for."""
        return _time(_annotation(self.pod, DRAIN_ANNOTATION))

    @property
    def priced(self) -> bool:
        return _annotation(self.pod, DELETION_COST_ANNOTATION) == FIRST_TO_GO

    @property
    def waits(self) -> bool:
        """No node or no container yet, or trouble: Kubernetes lets these go before all others."""
        pending = (self.pod.get("status") or {}).get("phase") == "Pending"
        return not self.draining and (pending or self.state.trouble is not None)

    @property
    def draining(self) -> bool:
        return self.state.phase == DRAINING

    @property
    def may_drain(self) -> bool:
        """It says so, or says nothing and its container runs."""
        return self.draining or (self.state.phase is None and self.state.trouble is None)

    @property
    def serves(self) -> bool:
        """Requests may be running in it: also in one that is too busy to answer, to us and to the kubelet's probe."""
        return self.state.ready or self.state.phase in ("Serving", DRAINING) or (self.may_drain and self.started)

    @property
    def started(self) -> bool:
        """Its startup probe has passed, in this life of its container."""
        statuses = (self.pod.get("status") or {}).get("containerStatuses") or ()
        return any(status.get("name") == CONTAINER and status.get("started") is True for status in statuses)


def scale_down(spec: LLMDeploymentSpec, fleet: Fleet, world: World, now: datetime) -> ScaleDown:
    """The next step, whichever it is."""
    wanted, deployment = replicas(spec), world.child("Deployment")
    if deployment is None or not wanted:
        return ScaleDown(wanted)
    held = int(deployment["spec"].get("replicas", 1))
    found, former = _replicas(fleet.newest, world), _replicas(fleet.older, world)
    surplus = len(found) - wanted
    if former or template_annotation(deployment) != fleet.wanted.template_hash:
        return _back(wanted, _needed(wanted, found, former))
    if surplus <= 0:
        return _back(wanted, found)
    if held <= wanted:  # Kubernetes has its word and takes them
        return ScaleDown(wanted)
    ordered = sorted(found, key=_first_to_go)
    victims, spared = ordered[:surplus], ordered[surplus:]
    actions = [*_called_off(spared), *(step for victim in victims for step in _emptying(victim, spec, now))]
    empty = [victim for victim in victims if _is_empty(victim, spec, now)]
    actions += [Annotate(one.pod, {DELETION_COST_ANNOTATION: FIRST_TO_GO}) for one in empty if not one.priced]
    # One that was priced while it loaded may serve by now: Kubernetes must not take it for one that is empty.
    stale = [one for one in found if one.priced and one not in empty]
    actions += [Annotate(one.pod, {DELETION_COST_ANNOTATION: None}) for one in stale if one in victims]
    gone = 0 if stale else sum(one.priced for one in empty)
    return ScaleDown(max(wanted, min(held, len(found) - gone)), tuple(actions), under_way=True)


def stand(held: int, fleet: Fleet, world: World) -> ScaleDown:
    """Where the spec says nothing that could be acted on: nobody goes. Those that Kubernetes has its word to take, it takes."""
    found, former = _replicas(fleet.newest, world), _replicas(fleet.older, world)
    if len(found) + len(former) > held and not former:
        return ScaleDown(held)
    return _back(held, _needed(held, found, former))


def _needed(wanted: int, found: list[_Replica], former: list[_Replica]) -> list[_Replica]:
    """Who is not to go. In a rollout the former go anyway; but it may stop for good, and then as many as are wanted must serve."""
    staying = sum(one.serves and one.since is None for one in (*found, *former))
    return [*found, *former] if staying < wanted else found


def _back(wanted: int, needed: list[_Replica]) -> ScaleDown:
    """Nobody has to go."""
    return ScaleDown(wanted, tuple(_called_off(needed)), under_way=any(one.since is not None for one in needed))


def _replicas(states: Iterable[PodState], world: World) -> list[_Replica]:
    pods = {pod["metadata"]["name"]: pod for pod in world.pods}
    answers = {name: probe.body for name, probe in world.drains.items() if probe.status == 200}
    return [_Replica(state, pods[state.name], answers.get(state.name)) for state in states if not state.ended]


def _first_to_go(replica: _Replica) -> tuple[int, int, float, str]:
    """Who serves nobody, then who is being emptied already, then who has least running; of equals the youngest."""
    kind = 0 if replica.waits else 1 if not replica.serves else 2 if replica.draining or replica.since else 3
    running = (replica.drain or {}).get("inFlight")
    born = _time(replica.pod["metadata"].get("creationTimestamp"))
    return (
        kind,
        running if isinstance(running, int) else _BUSIEST,
        -born.timestamp() if born is not None else 0.0,
        replica.state.name,
    )


def _emptying(victim: _Replica, spec: LLMDeploymentSpec, now: datetime) -> Iterator[Action]:
    """Marked before it is told, so that whoever finds it draining knows why."""
    if not victim.serves:
        return
    if victim.since is None:
        yield Annotate(victim.pod, {DRAIN_ANNOTATION: now.strftime("%Y-%m-%dT%H:%M:%SZ")})
    if not (victim.drain or {}).get("draining"):
        rollout = spec.rollout
        # A deletion tells the endpoints at once; here the kubelet has to find out by its probe that the replica is unready.
        body = {
            "lameDuckSeconds": rollout.lame_duck_seconds + UNREADY_SECONDS,
            "timeoutSeconds": rollout.drain_timeout_seconds,
        }
        yield Manage(victim.pod, "POST", DRAIN_PATH, body)


def _called_off(spared: list[_Replica]) -> Iterator[Action]:
    """Those that were to go and need not: only ours, for a person may drain a replica by hand. The mark stays until it serves."""
    for replica in spared:
        if replica.since is not None and replica.may_drain:
            yield Manage(replica.pod, "DELETE", DRAIN_PATH)
            if replica.priced:
                yield Annotate(replica.pod, {DELETION_COST_ANNOTATION: None})
        elif replica.since is not None or replica.priced:
            yield Annotate(replica.pod, {DRAIN_ANNOTATION: None, DELETION_COST_ANNOTATION: None})


def _is_empty(victim: _Replica, spec: LLMDeploymentSpec, now: datetime) -> bool:
    """Nothing runs in it and Kubernetes knows that it is unready, or it has had its time."""
    if not victim.serves:
        return True
    if victim.since is None:
        return False
    if (victim.drain or {}).get("drained") is True and not victim.state.ready:
        return True
    rollout = spec.rollout
    longest = rollout.lame_duck_seconds + UNREADY_SECONDS + rollout.drain_timeout_seconds + GRACE_MARGIN
    waited = now - victim.since
    return waited >= timedelta(seconds=longest) or (victim.drain is None and waited >= _UNANSWERED)


def _annotation(pod: Manifest, name: str) -> str | None:
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return annotations.get(name)


def _time(text: str | None) -> datetime | None:
    """None where there is none, or a hand has written something else."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
