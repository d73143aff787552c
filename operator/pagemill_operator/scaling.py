"""How many replicas are wanted, and who says so: the spec, our own decision, or whoever writes /scale (KEDA, an HPA, a person).

Pure: (resource, world, previous status, what is remembered, now) → Scaled. A switch of who decides starts from what stands and
never passes through one: ours begins with the Deployment's number, and a lower word of a new outside scaler is followed only
once it has had a stabilisation window to look around. What is remembered may be lost at any time (a restart, another leader):
then nothing shrinks before a whole window was seen anew. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from pagemill_operator.autoscale import Decision, History, decide, remember
from pagemill_operator.conditions import Finding, stamp
from pagemill_operator.observe import World, serving
from pagemill_operator.pod_state import DRAINING, has_ended
from pagemill_operator.resource import Resource
from pagemill_operator.samples import from_prometheus, read
from pagemill_operator.scraped import Scraped
from pagemill_operator.settings import Settings
from pagemill_operator.signals import Samples
from pagemill_operator.spec_scaling import Autoscaling
from pagemill_operator.status_fields import AutoscalingStatus, Signal

SCALING_ACTIVE = "ScalingActive"
RECOMMENDING = "RecommendMode"
_GAP = timedelta(seconds=60)  # after which asks are no longer known without a gap
# Kubernetes answers a GET of /scale with an error for as long as spec.replicas has no value; a write is welcome.
_TO_SAY = "{who} can't read /scale before it has a number: kubectl scale llmd {name} --replicas={stands}, once"


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look leaves for the next. Whoever has none begins anew."""

    history: History
    at: datetime  # of that look
    scraped: Scraped | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """Replicas for now, and what is said of it."""

    replicas: int | None = None  # None: the spec's own word
    active: Finding | None = None  # ScalingActive; None: nothing scales
    status: AutoscalingStatus | None = None
    decision: Decision | None = None  # of ours, at this look
    memory: Memory | None = None
    wait: float | None = None  # seconds until a word of somebody else's is followed
    asleep: bool = False  # at zero, and the next request wakes it
    numberless: bool = False  # /scale can't be read yet: nobody has written it

    def accepted(self, resource: Resource) -> Resource:
        """The resource with the number that was decided as its own: whatever comes after need not know who decided."""
        if self.replicas is None:
            return resource
        update: dict[str, Any] = {"replicas": self.replicas}
        if self.numberless and (autoscaling := resource.spec.autoscaling) is not None:
            # Nothing is made of KEDA's yet: it would fail, and try again ever more rarely.
            update["autoscaling"] = autoscaling.model_copy(update={"engine": "External"})
        return replace(resource, spec=resource.spec.model_copy(update=update))

    def again(self, settings: Settings) -> float | None:
        """Seconds until the next look, which no event asks for; None: somebody else decides."""
        if self.memory is None:
            return self.wait
        return settings.look_again_seconds if self.asleep else settings.scale_seconds


UNSCALED = Scaled()


def scale(
    resource: Resource, world: World, previous: Mapping[str, Any], memory: Memory | None, now: datetime
) -> Scaled:
    """All of it."""
    autoscaling = resource.spec.autoscaling
    if autoscaling is None:
        return UNSCALED
    said = _said(previous)
    if resource.spec.suspend:
        return Scaled(active=_active("False", "Suspended", "spec.suspend holds it at zero"), status=said)
    if autoscaling.engine == "Operator":
        return _ours(autoscaling, world, said, _was_active(previous), memory, now)
    return _theirs(resource, autoscaling, world, said, now)


def _ours(
    autoscaling: Autoscaling,
    world: World,
    said: AutoscalingStatus | None,
    active: bool,
    memory: Memory | None,
    now: datetime,
) -> Scaled:
    ours = said is not None and said.decider == "Operator"
    if (
        memory is None or not ours or now - memory.at > _GAP
    ):  # a first look, or others have decided meanwhile, or nobody
        memory = Memory(History(current=_start(autoscaling, world, said), since=now), now)
    samples, scraped = _samples(autoscaling, world, memory.scraped, now)
    decision = decide(autoscaling, samples, memory.history, now)
    acts = autoscaling.mode == "Apply"
    history = remember(autoscaling, memory.history, decision, acts, now)
    return Scaled(
        replicas=history.current,
        active=_our_activity(autoscaling, decision),
        status=_written(said, active, decision, memory.history.current, history.current, now),
        decision=decision,
        memory=Memory(history, now, scraped),
        asleep=history.current == 0,
    )


def _samples(
    autoscaling: Autoscaling, world: World, scraped: Scraped | None, now: datetime
) -> tuple[Samples, Scraped | None]:
    names = [pod["metadata"]["name"] for pod in serving(world)]
    coming = _coming(world)
    if autoscaling.prometheus is None:
        return read(now, names, coming, world.pages, scraped, world.held)
    return from_prometheus(now, names, coming, world.answers, world.held), None


def _coming(world: World) -> int:
    """Replicas that are there and do not serve yet; who is being emptied is on its way out."""
    past = {pod["metadata"]["name"] for pod in serving(world)}
    past |= {name for name, probe in world.probes.items() if probe.body.get("phase") == DRAINING}
    staying = (pod for pod in world.pods if "deletionTimestamp" not in pod["metadata"] and not has_ended(pod))
    return sum(pod["metadata"]["name"] not in past for pod in staying)


def _our_activity(autoscaling: Autoscaling, decision: Decision) -> Finding:
    if not decision.active:
        return _active("False", decision.rule, decision.reason)
    if autoscaling.mode == "Recommend":
        return _active(
            "False", RECOMMENDING, "mode Recommend: it decides, says so in status.autoscaling, and does not act"
        )
    source = (
        "the replicas' own metrics" if autoscaling.prometheus is None else f"Prometheus at {autoscaling.prometheus.url}"
    )
    return _active("True", "SignalsComplete", f"the operator decides, on {source}")


def _written(
    said: AutoscalingStatus | None,
    active: bool,
    decision: Decision,
    before: int,
    after: int,
    now: datetime,
) -> AutoscalingStatus:
    """The last decision stays until there is another one: status is no place for live readings."""
    ours = said is not None and said.decider == "Operator"
    last = said.last_scale_time if said is not None else None
    new = AutoscalingStatus(
        desired=decision.desired,
        decision=decision.decision,
        reason=f"{decision.rule}: {decision.reason}",
        signals=tuple(Signal(name=ask.name, value=ask.value, desired=ask.desired) for ask in decision.signals),
        last_scale_time=stamp(now) if after != before else last,
        decider="Operator",
        since=said.since if said is not None and ours else stamp(now),
    )
    if said is None or not ours or after != before:
        return new
    same = (said.desired, said.decision, _rule(said)) == (new.desired, new.decision, decision.rule)
    if same or (decision.decision == "Hold" and decision.active and active and said.desired == new.desired):
        return said
    return new


def _rule(said: AutoscalingStatus) -> str:
    return said.reason.partition(":")[0]


def _theirs(
    resource: Resource, autoscaling: Autoscaling, world: World, said: AutoscalingStatus | None, now: datetime
) -> Scaled:
    """KEDA's or an HPA's word, as they write it through /scale."""
    engine, word, held = autoscaling.engine, resource.spec.replicas, standing(world)
    since = datetime.fromisoformat(said.since) if said is not None and said.decider == engine else now
    stands = _first(autoscaling) if held is None else held
    wanted = stands if word is None else max(autoscaling.min_replicas, min(autoscaling.max_replicas, word))
    handing = wanted < stands and now - since < timedelta(seconds=autoscaling.scale_down.stabilization_seconds)
    if handing:
        wanted = stands
    if autoscaling.mode == "Recommend":
        active = _active(
            "False", RECOMMENDING, "mode Recommend is the operator's own: set autoscaling.engine: Operator"
        )
    elif word is None:
        who = "KEDA" if engine == "KEDA" else "whoever is to decide"
        advice = _TO_SAY.format(who=who, name=resource.owner.key.name, stands=stands)
        active = _active("False", "NoScaleWritten", f"{advice}; what stands is held")
    elif handing:
        waits = "a lower word than what stands waits for scaleDown.stabilizationSeconds"
        active = _active("True", "HandingOver", f"{engine} decides since {stamp(since)}; {waits}")
    else:
        active = _active("True", "OutsideScaler", f"{'KEDA' if engine == 'KEDA' else 'whoever writes /scale'} decides")
    changed = said is None or said.decider != engine or said.desired != wanted
    status = said
    if changed:
        former = stands if said is None else said.desired
        status = AutoscalingStatus(
            desired=wanted,
            decision="Hold" if wanted == former else ("Up" if wanted > former else "Down"),
            reason=f"{engine}: {'what stands is held' if handing or word is None else f'/scale says {word}'}",
            signals=(),
            last_scale_time=stamp(now) if wanted != former else (said.last_scale_time if said is not None else None),
            decider=engine,
            since=stamp(since),
        )
    left = timedelta(seconds=autoscaling.scale_down.stabilization_seconds) - (now - since) if handing else None
    wait = None if left is None else left.total_seconds()
    return Scaled(wanted, active, status, wait=wait, asleep=wanted == 0, numberless=word is None)


def standing(world: World) -> int | None:
    """What the Deployment is held to now; None where there is none."""
    deployment = world.child("Deployment")
    return None if deployment is None else int(deployment["spec"].get("replicas", 1))


def _start(autoscaling: Autoscaling, world: World, said: AutoscalingStatus | None) -> int:
    """From what stands; at a zero that we have not decided on (suspended until now, or fixed at it) as a new one does."""
    stands = standing(world)
    asleep = said is not None and said.decider == "Operator" and said.desired == 0
    return stands if stands or (stands == 0 and asleep) else _first(autoscaling)


def _first(autoscaling: Autoscaling) -> int:
    """A model that may sleep starts once all the same: else nobody knows whether it can."""
    return max(1, autoscaling.min_replicas)


def _said(previous: Mapping[str, Any]) -> AutoscalingStatus | None:
    """None too where another version of us, or a hand, has written what this one can't read: it begins anew, from what stands."""
    found = previous.get("autoscaling")
    try:
        return AutoscalingStatus.model_validate(found) if found else None
    except ValidationError:
        return None


def _was_active(previous: Mapping[str, Any]) -> bool:
    """Whether the last look could decide, also where it does not act."""
    conditions: Iterable[Mapping[str, Any]] = previous.get("conditions") or ()
    found = next((one for one in conditions if one["type"] == SCALING_ACTIVE), None)
    return found is not None and (found["status"] == "True" or found["reason"] == RECOMMENDING)


def _active(answer: Any, reason: str, message: str) -> Finding:
    return Finding(SCALING_ACTIVE, answer, reason, message)
