"""All replicas of one LLMDeployment together: what is wanted, which pods are the newest generation, what holds them up.

Pure. Made once a reconcile from the world; `conditions` and `status` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.ending import PROBE_FAILED, RESTARTS
from pagemill_operator.observe import World
from pagemill_operator.pod_state import PodState, read_pod
from pagemill_operator.refused_pods import refused_trouble
from pagemill_operator.render import replicas
from pagemill_operator.render_kept import template_annotation
from pagemill_operator.resource import Resource
from pagemill_operator.template_hash import template_hash
from pagemill_operator.waiting import Trouble, wants_room

# Of several troubles the one that explains most is told: the server's own word first (it is in none of these), a loop last.
_LAST = (PROBE_FAILED, RESTARTS, "CrashLoopBackOff")
_KILL_TAKES = timedelta(seconds=30)  # after a grace period is over


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the newest accepted spec asks for."""

    replicas: int
    template_hash: str | None  # None: no pod is of the newest generation


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pods in the order of their names."""

    wanted: Wanted
    newest: tuple[PodState, ...]  # of the wanted template, not leaving
    older: tuple[PodState, ...]  # of a former one, not leaving
    leaving: tuple[PodState, ...]
    trouble: Trouble | None  # the worst that holds the newest up
    settled: bool  # the Deployment's controller has seen what we last wrote
    exists: bool  # the Deployment is there
    crowded: str | None = None  # the scheduler's words, where the newest wait for the place of those that leave
    overdue: tuple[str, ...] = ()  # of those that leave, who should have been gone by now

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.newest)

    @property
    def serves(self) -> bool:
        """Every wanted replica of the newest generation answers."""
        return self.settled and self.ready >= self.wanted.replicas

    @property
    def starting(self) -> tuple[PodState, ...]:
        return tuple(pod for pod in self.newest if not pod.ready)


def wanted_of(resource: Resource) -> Wanted:
    """What an accepted spec asks for."""
    return Wanted(replicas(resource.spec), template_hash(resource.spec))


def standing(world: World) -> Wanted:
    """What was asked for before: a spec that was refused changes nothing of what runs."""
    deployment = world.child("Deployment")
    if deployment is None:
        return Wanted(0, None)
    return Wanted(int(deployment["spec"].get("replicas", 1)), template_annotation(deployment))


def survey(wanted: Wanted, world: World, now: datetime) -> Fleet:
    """Read every pod once."""
    claims = tuple(child for child in world.children if child["kind"] == "PersistentVolumeClaim")
    pods = [
        read_pod(pod, world.probes.get(pod["metadata"]["name"]), world.events, claims, world.nodes)
        for pod in world.pods
    ]
    staying = [pod for pod in pods if not pod.leaving and pod.template_hash == wanted.template_hash]
    alive = [pod for pod in staying if not pod.ended]
    # One that ended for good is news only until another one is there in its place.
    newest = tuple(alive) if len(alive) >= wanted.replicas else tuple(staying)
    leaving = tuple(pod for pod in pods if pod.leaving)
    deployment = world.child("Deployment")
    lacking = (
        sum(pod.ready for pod in newest) < wanted.replicas
    )  # what holds up a replica that goes anyway is no trouble
    troubles = [pod.trouble for pod in newest if pod.trouble is not None and lacking]
    # A node that is full of replicas that finish what they run is no trouble: they go. One that is lost with them is.
    room = any(_leaves_in_time(pod, now) for pod in world.pods)
    crowded = [trouble for trouble in troubles if room and wants_room(trouble)]
    troubles = [trouble for trouble in troubles if trouble not in crowded]
    if not troubles and deployment is not None and lacking:
        troubles = _deployment_troubles(deployment, missing=len(newest) < wanted.replicas, loading=_loading(newest))
    return Fleet(
        wanted=wanted,
        newest=newest,
        older=tuple(pod for pod in pods if not (pod.leaving or pod.ended or pod in staying)),
        leaving=leaving,
        trouble=min(troubles, key=_rank, default=None),
        settled=deployment is not None and _observed(deployment),
        exists=deployment is not None,
        crowded=crowded[0].message if crowded else None,
        overdue=tuple(
            pod["metadata"]["name"] for pod in world.pods if _is_leaving(pod) and not _leaves_in_time(pod, now)
        ),
    )


def _is_leaving(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _leaves_in_time(pod: Manifest, now: datetime) -> bool:
    """Kubernetes sets a pod's deletionTimestamp to the end of its grace period."""
    end = pod["metadata"].get("deletionTimestamp")
    return end is not None and now < datetime.fromisoformat(end) + _KILL_TAKES


def _rank(trouble: Trouble) -> tuple[int, str, str]:
    return (_LAST.index(trouble.reason) + 1 if trouble.reason in _LAST else 0, trouble.reason, trouble.message)


def _loading(pods: tuple[PodState, ...]) -> bool:
    """Whether a pod says itself that it gets on; the Deployment's deadline knows nothing of loading."""
    return any(pod.phase is not None for pod in pods)


def _deployment_troubles(deployment: Manifest, *, missing: bool, loading: bool) -> list[Trouble]:
    conditions = {found["type"]: found for found in (deployment.get("status") or {}).get("conditions") or ()}
    failure: Mapping[str, Any] = conditions.get("ReplicaFailure", {})
    progress: Mapping[str, Any] = conditions.get("Progressing", {})
    if missing and failure.get("status") == "True":
        return [refused_trouble(str(failure.get("message", "")))]
    if not loading and progress.get("reason") == "ProgressDeadlineExceeded":
        return [Trouble("ProgressDeadline", "no replica has become ready within startup.timeoutSeconds: see the pods")]
    return []


def _observed(deployment: Manifest) -> bool:
    seen = (deployment.get("status") or {}).get("observedGeneration", 0)
    return int(seen) >= int(deployment["metadata"].get("generation", 1))
