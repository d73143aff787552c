"""What one replica is doing, read from its pod, its events and its own word on /ready.

A trouble is told as early as Kubernetes shows it and in words to act on: what the server wrote as its last line
(`pagemill.failures`) goes before Kubernetes' exit codes, those before a back-off that only says that something failed. Pure;
called by `fleet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagemill.failures import Failure, parse_termination
from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.labels import TEMPLATE_HASH_ANNOTATION
from pagemill_operator.render_pod import CONTAINER
from pagemill_operator.waiting import Trouble, creating_trouble, scheduling_trouble, waiting_trouble

RESTARTS = "ServerEnded"  # the reason for an end that is followed by a restart at once: it may have been the only one


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod. `failure` is the server's own last line, where it left one and has not served since."""

    name: str
    template_hash: str | None
    ready: bool  # as the kubelet sees it, and not on its way out
    leaving: bool
    ended: (
        bool  # for good: evicted, or refused by its node; it is kept to be read, and another one is made in its place
    )
    trouble: Trouble | None
    failure: Failure | None
    phase: str | None  # of loading, from /ready
    percent: int
    capacity: Mapping[str, int] | None
    restarts: int
    answered: bool  # /ready gave an answer


def read_pod(pod: Manifest, probe: Probe | None, events: Iterable[Manifest], claims: Iterable[Manifest]) -> PodState:
    """`probe` is None where the pod has no address yet."""
    status: Mapping[str, Any] = pod.get("status") or {}
    container = _container(status)
    leaving = "deletionTimestamp" in pod["metadata"]
    ready = not leaving and _condition(status, "Ready").get("status") == "True"
    failure = None if ready else parse_termination(_last_end(container).get("message", ""))
    body: Mapping[str, Any] = probe.body if probe is not None else {}
    return PodState(
        name=pod["metadata"]["name"],
        template_hash=(pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH_ANNOTATION),
        ready=ready,
        leaving=leaving,
        ended=has_ended(pod),
        trouble=None if ready else _trouble(pod, status, container, failure, tuple(events), tuple(claims)),
        failure=failure,
        phase=_text(body.get("phase")),
        percent=_percent(body.get("percent")),
        capacity=capacity_of(body.get("capacity")),
        restarts=int(container.get("restartCount", 0)),
        answered=probe is not None and probe.status != 0,
    )


def has_ended(pod: Manifest) -> bool:
    """Whether none of its containers will run again. Its address may be another pod's by now."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _trouble(
    pod: Manifest,
    status: Mapping[str, Any],
    container: Mapping[str, Any],
    failure: Failure | None,
    events: tuple[Manifest, ...],
    claims: tuple[Manifest, ...],
) -> Trouble | None:
    if failure is not None:
        return Trouble(failure.reason.value, failure.message)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return scheduling_trouble(scheduled.get("message", ""), claims)
    waiting = (container.get("state") or {}).get("waiting") or {}
    name = pod["metadata"]["name"]
    mine = [event for event in events if (event.get("involvedObject") or {}).get("name") == name]
    if trouble := waiting_trouble(waiting) or creating_trouble(waiting, mine):
        return trouble
    if status.get("phase") == "Failed" and not container:  # evicted, or its node refused it
        return Trouble(status.get("reason") or "PodFailed", status.get("message") or "the pod failed")
    return _ended(container, waiting)


def _ended(container: Mapping[str, Any], waiting: Mapping[str, Any]) -> Trouble | None:
    """The container ended without a line of the server's: by a kill, a crash, or because it is another program."""
    end = _last_end(container)
    if not end:
        return None
    code, restarts = end.get("exitCode"), int(container.get("restartCount", 0))
    if end.get("reason") == "OOMKilled":
        return Trouble(
            "OOMKilled", "the server was killed for using more memory than resources.limits.memory: raise it"
        )
    cause = f"exit code {code}" if not end.get("signal") else f"signal {end['signal']}"
    if isinstance(code, int) and code > 128:
        cause += f", signal {code - 128}"
    said = " ".join(str(end.get("message", "")).split())
    message = f"the server ended by itself ({cause}), {restarts} restarts: see the pod's log" + (
        f"; it said: {said}" if said else ""
    )
    backing_off = waiting.get("reason") == "CrashLoopBackOff" or restarts >= 2  # between two waits it is one still
    return Trouble("CrashLoopBackOff" if backing_off else RESTARTS, message)


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            return dict(container)
    return {}


def _last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container last ended: now, or before the start that is under way."""
    for state in (container.get("state"), container.get("lastState")):
        if end := (state or {}).get("terminated"):
            return dict(end)
    return {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((dict(found) for found in status.get("conditions") or () if found["type"] == kind), {})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _percent(value: object) -> int:
    return max(0, min(100, int(value))) if isinstance(value, int | float) else 0


def capacity_of(value: object) -> Mapping[str, int] | None:
    """The `capacity` of /ready or of a former status, if it is whole."""
    names = ("weightsBytes", "kvCacheBytes", "kvBlocks", "maxConcurrentTokens", "maxModelLenThatFits")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(name), int) for name in names):
        return None
    return {name: value[name] for name in names}
