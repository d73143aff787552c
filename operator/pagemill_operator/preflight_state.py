"""Where a preflight's Job is: passed, failed, stuck or under way, read from its pod rather than from the Job's own word.

A mesh's sidecar may keep a pod from ever ending, and a pod that is never made has no word but an event's. Pure; called by
`preflight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pagemill.failures import parse_termination
from pagemill.preflight_report import Report, parse_report
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.observe import World
from pagemill_operator.pod_state import advised, read_pod
from pagemill_operator.refused_pods import refused_trouble
from pagemill_operator.waiting import Trouble

FAILED = "PreflightFailed"
_CONTAINER = "preflight"
_CACHE_LAGS = timedelta(seconds=30)  # a Job may be seen to be over before its pod is


@dataclass(frozen=True, slots=True)
class Passed:
    """It has found what it looked for."""

    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    """It is over, and has to be tried again."""

    trouble: Trouble
    ended: datetime


@dataclass(frozen=True, slots=True)
class Stuck:
    """Its pod does not start; Kubernetes goes on trying."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Underway:
    """A sentence, and whether it is about something that moves without events."""

    message: str
    moves: bool = False


State = Passed | Failed | Stuck | Underway


def state_of(job: Manifest, world: World, now: datetime) -> State:
    """Of one Job."""
    pod = _pod_of(job, world)
    if pod is None:
        return _without_pod(job, world, now)
    end = _end(pod)
    if end:
        report = parse_report(str(end.get("message", ""))) if end.get("exitCode") == 0 else None
        ended = _time(now, end.get("finishedAt"), *_of_job(job))
        return Passed(report) if report is not None else Failed(_trouble(pod, end), ended)
    claims = tuple(child for child in world.children if child["kind"] == "PersistentVolumeClaim")
    probe = world.probes.get(pod["metadata"]["name"])
    seen = read_pod(pod, probe, world.events, claims, world.nodes)
    over = _condition(job, "Failed")
    if over or (pod.get("status") or {}).get("phase") == "Failed":
        words = f"its pod {pod['metadata']['name']} ended before it could say anything"
        return Failed(seen.trouble or _said(f"{words}{_because(over)}"), _time(now, *_of_job(job)))
    if seen.trouble is not None:
        return Stuck(seen.trouble)
    if seen.phase == "Downloading":
        percent = seen.percent // 10 * 10
        return Underway(f"the preflight fetches the model into the cache ({percent}%)", moves=True)
    running = (pod.get("status") or {}).get("phase") == "Running"
    return Underway("the preflight looks at the model" if running else "the preflight's pod is being started", running)


def _without_pod(job: Manifest, world: World, now: datetime) -> State:
    """Not made yet, refused, or gone."""
    if over := _condition(job, "Failed"):
        return Failed(_said(f"its pod is gone{_because(over)}"), _time(now, *_of_job(job)))
    if over := _condition(job, "Complete"):
        ended = _time(now, *_of_job(job))
        if now - ended > _CACHE_LAGS:
            return Failed(_said("its pod is gone, and with it what it found"), ended)
    name = job["metadata"]["name"]
    for event in reversed(world.events):
        if event.get("reason") == "FailedCreate" and (event.get("involvedObject") or {}).get("name") == name:
            return Stuck(refused_trouble(str(event.get("message", ""))))
    return Underway("the preflight's pod is being made")


def _trouble(pod: Manifest, end: Mapping[str, Any]) -> Trouble:
    """Its own last line, else how it ended."""
    text = str(end.get("message", ""))
    if (failure := parse_termination(text)) is not None:
        return Trouble(failure.reason.value, advised(failure))
    name, code = pod["metadata"]["name"], end.get("exitCode")
    if end.get("reason") == "OOMKilled":
        return _said(f"its pod {name} was killed for using more memory than it may: does the model have a huge header?")
    words = f"exit code {code}" + (
        f", {end['reason']}" if end.get("reason") not in (None, "Error", "Completed") else ""
    )
    said = " ".join(text.split())
    hint = (
        ": the image has no `pagemill preflight`? spec.image must be of this release" if code in (2, 127, 128) else ""
    )
    return _said(
        f"its pod {name} ended by itself ({words}){hint}" + (f"; it said: {said}" if said else "; see its log")
    )


def _said(words: str) -> Trouble:
    return Trouble(FAILED, f"the preflight of the model failed, {words}")


def _because(condition: Mapping[str, Any]) -> str:
    message = condition.get("message") or condition.get("reason")
    return f" ({message})" if message else ""


def _pod_of(job: Manifest, world: World) -> Manifest | None:
    uid = job["metadata"].get("uid")
    made = [
        pod
        for pod in world.jobs
        if any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
    ]
    return max(made, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)


def _end(pod: Manifest) -> Mapping[str, Any]:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == _CONTAINER:
            return dict((container.get("state") or {}).get("terminated") or {})
    return {}


def _condition(job: Manifest, kind: str) -> Mapping[str, Any]:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            return dict(condition)
    return {}


def _of_job(job: Manifest) -> tuple[object, ...]:
    """When it was over, else when it was made: a pod of a lost node may never say when it ended, and its time would never come."""
    over = _condition(job, "Failed") or _condition(job, "Complete")
    return over.get("lastTransitionTime"), job["metadata"].get("creationTimestamp")


def _time(now: datetime, *texts: object) -> datetime:
    """The first that is one."""
    return next((datetime.fromisoformat(text) for text in texts if isinstance(text, str)), now)
