"""What one replica is doing, read from its pod, its events and its own word on /ready.

A trouble is told as early as Kubernetes shows it and in words to act on: what the server wrote as its last line
(`pagemill.failures`) goes before Kubernetes' exit codes, those before a back-off that only says that something failed. Pure;
called by `fleet`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagemill.capacity import read_capacity
from pagemill.failures import Failure, FailureReason, parse_termination
from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.ending import ended_trouble, is_loop, last_end
from pagemill_operator.labels import DRAIN_ANNOTATION, TEMPLATE_HASH_ANNOTATION
from pagemill_operator.render_pod import CONTAINER
from pagemill_operator.waiting import Trouble, creating_trouble, gated_trouble, scheduling_trouble, waiting_trouble

# What may be over after a restart. The others come back: they follow from the spec, the model or the machine.
_PASSES = (
    *(FailureReason.CUDA_ERROR, FailureReason.ENGINE_FAILED),
    *(FailureReason.HUB_UNREACHABLE, FailureReason.LOAD_STALLED),
)
DRAINING = "Draining"  # the phase of one that finishes what it runs
_PHASE = re.compile(r"[A-Za-z]{1,40}")
_REASON = re.compile(r"^[A-Za-z][A-Za-z0-9]*$")  # of a condition; a kubelet's may be OutOfnvidia.com/gpu


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
    running: bool = False  # its container runs
    started: bool = False  # and its startup probe has passed, in this life of it
    draining: bool = False  # it says so, or was told to and says nothing


def read_pod(
    pod: Manifest,
    probe: Probe | None,
    events: Iterable[Manifest],
    claims: Iterable[Manifest],
    nodes: Iterable[Manifest] = (),
) -> PodState:
    """`probe` is None where the pod has no address yet; `nodes` are those that can be seen."""
    status: Mapping[str, Any] = pod.get("status") or {}
    container = _container(status)
    leaving = "deletionTimestamp" in pod["metadata"]
    ready = not leaving and _condition(status, "Ready").get("status") == "True"
    failure = None if ready else parse_termination(last_end(container).get("message", ""))
    body: Mapping[str, Any] = probe.body if probe is not None else {}
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    phase = _word(body.get("phase"))
    return PodState(
        name=pod["metadata"]["name"],
        template_hash=annotations.get(TEMPLATE_HASH_ANNOTATION),
        ready=ready,
        leaving=leaving,
        ended=has_ended(pod),
        trouble=None if ready else _trouble(pod, container, failure, tuple(events), tuple(claims), tuple(nodes)),
        failure=failure,
        phase=phase,
        percent=_percent(body.get("percent")),
        capacity=capacity_of(body.get("capacity")),
        restarts=int(container.get("restartCount", 0)),
        answered=probe is not None and probe.status != 0,
        running="running" in (container.get("state") or {}),
        started=container.get("started") is True,
        draining=phase == DRAINING or (phase is None and DRAIN_ANNOTATION in annotations),
    )


def has_ended(pod: Manifest) -> bool:
    """Whether none of its containers will run again. Its address may be another pod's by now."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def advised(failure: Failure) -> str:
    """The server's sentence, with those suggested values that it does not name itself."""
    values = [f"{name}: {value}" for name, value in failure.suggestion.items() if str(value) not in failure.message]
    return f"{failure.message}; would work: {' or '.join(values)}" if values else failure.message


def _trouble(
    pod: Manifest,
    container: Mapping[str, Any],
    failure: Failure | None,
    events: tuple[Manifest, ...],
    claims: tuple[Manifest, ...],
    nodes: tuple[Manifest, ...],
) -> Trouble | None:
    status: Mapping[str, Any] = pod.get("status") or {}
    spec: Mapping[str, Any] = pod.get("spec") or {}
    if failure is not None:
        passing = failure.reason in _PASSES and not is_loop(container)
        return Trouble(failure.reason.value, advised(failure), passing)
    if status.get("phase") == "Failed" and (status.get("reason") or not container):
        return _failed(status)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return gated_trouble(spec.get("schedulingGates") or ())
        return scheduling_trouble(scheduled.get("message", ""), claims, _asks(spec))
    if lost := _lost(spec, status, container, nodes):
        return lost
    waiting = (container.get("state") or {}).get("waiting") or {}
    name = pod["metadata"]["name"]
    mine = [event for event in events if (event.get("involvedObject") or {}).get("name") == name]
    return (
        waiting_trouble(waiting)
        or _others(status, container)
        or creating_trouble(waiting, mine)
        or ended_trouble(_container_spec(spec, container), container, "deletionTimestamp" in pod["metadata"], mine)
    )


def _failed(status: Mapping[str, Any]) -> Trouble:
    """Evicted, or refused by its node: for good, and another one is made in its place."""
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        message = (
            f"its node evicted the replica: {message or 'it does not say why'}; resources.requests say what it needs"
        )
    elif not _REASON.match(reason):
        message, reason = f"{reason}: {message}" if reason else message, "PodFailed"
    return Trouble(reason, message or "the pod failed", passing=True)


def _lost(
    spec: Mapping[str, Any], status: Mapping[str, Any], container: Mapping[str, Any], nodes: tuple[Manifest, ...]
) -> Trouble | None:
    """Its node no longer speaks. Where nodes can't be seen: Kubernetes has made it unready, and no kubelet has."""
    name = str(spec.get("nodeName") or "")
    node = next((node for node in nodes if name and node["metadata"]["name"] == name), None)
    if node is not None:
        report = _condition(node.get("status") or {}, "Ready")
        lost, why = report.get("status", "True") != "True", f" ({report.get('message') or report.get('reason')})"
    else:
        ready = _condition(status, "Ready")
        by_kubernetes = ready.get("status") == "False" and not ready.get("reason")  # a kubelet always gives a reason
        lost, why = by_kubernetes and container.get("ready") is True, ""
    if not lost:
        return None
    message = (
        f"node {name or 'of the replica'} does not answer{why}: Kubernetes makes another replica elsewhere after its "
        "tolerance, five minutes unless pod.tolerations say otherwise"
    )
    return Trouble("NodeUnreachable", message, passing=True)


def _others(status: Mapping[str, Any], container: Mapping[str, Any]) -> Trouble | None:
    """A container that somebody else has put into the pod (a mesh, an injector) and that holds it up."""
    for other in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if other.get("name") == container.get("name"):
            continue
        name, waiting = other.get("name"), (other.get("state") or {}).get("waiting") or {}
        if trouble := waiting_trouble(waiting):
            return Trouble(trouble.reason, f"container {name}, which is not ours: {trouble.message}")
        end = last_end(other)
        if waiting.get("reason") == "CrashLoopBackOff" or (end.get("exitCode") and not other.get("ready")):
            said = " ".join(str(end.get("message", "")).split())
            words = f"container {name}, which is not ours, ends with exit code {end.get('exitCode')}: see its log"
            return Trouble("CrashLoopBackOff", words + (f"; it said: {said}" if said else ""))
    return None


def _asks(spec: Mapping[str, Any]) -> dict[str, str]:
    """What the pod requests of a node, by resource; a limit alone is a request."""
    asked: dict[str, str] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked |= {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return asked


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The server's; in the pod of a preflight the only one."""
    found = list(status.get("containerStatuses") or ())
    return next((dict(container) for container in found if container.get("name") == CONTAINER), dict(*found[:1]))


def _container_spec(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((dict(one) for one in spec.get("containers") or () if one["name"] == container.get("name")), {})


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((dict(found) for found in status.get("conditions") or () if found["type"] == kind), {})


def _word(value: object) -> str | None:
    """A phase; whoever else answers on the port may send anything, and it would go into the status."""
    return value if isinstance(value, str) and _PHASE.fullmatch(value) else None


def _percent(value: object) -> int:
    return int(max(0, min(100, value))) if isinstance(value, int | float) and value == value else 0  # NaN is no number


def capacity_of(value: object) -> Mapping[str, int] | None:
    """The `capacity` of /ready or of a former status, if it is one."""
    try:
        return read_capacity(value)
    except (ValueError, KeyError, TypeError):
        return None
