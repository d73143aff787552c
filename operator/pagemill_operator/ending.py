"""How a replica's container ended when it left no word of its own: out of memory, a probe, a crash, or a program that can't start.

Pure: a pod's own manifest and the events about it. A probe's kill is told from the kubelet's events, and, since those are rationed
(25 a pod, of which a long start takes all), from a life exactly as long as the startup budget. Called by `pod_state`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.waiting import Trouble

RESTARTS = "ServerEnded"  # the reason for an end that is followed by a restart at once: it may have been the only one
PROBE_FAILED = "ProbeFailed"
_STOPPED = (0, 137, 143)  # exit codes of what was told to end: it did, or it was killed, or it has no handler
_NOT_STARTED = ("StartError", "ContainerCannotRun")
_KILLED = re.compile(r"failed (startup|liveness) probe")
_UNHEALTHY = re.compile(r"^(Startup|Liveness) probe (?:failed|errored[^:]*): (.*)", re.DOTALL)
_RATIONED = 15  # failures that the kubelet tells of in any case; a good start has one or two


def last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container last ended: now, or before the start that is under way."""
    for state in (container.get("state"), container.get("lastState")):
        if end := (state or {}).get("terminated"):
            return dict(end)
    return {}


def is_loop(status: Mapping[str, Any]) -> bool:
    """Whether a container has ended again and again; between two of the kubelet's waits it is a loop still."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    return waiting.get("reason") == "CrashLoopBackOff" or int(status.get("restartCount", 0)) >= 2


def was_stopped(status: Mapping[str, Any]) -> bool:
    """Whether a container last ended as one does that is told to, which only events explain."""
    end = last_end(status)
    return bool(end) and end.get("exitCode") in _STOPPED and end.get("reason") != "OOMKilled"


def ended_trouble(
    spec: Mapping[str, Any], status: Mapping[str, Any], leaving: bool, events: Iterable[Manifest]
) -> Trouble | None:
    """`spec` and `status` are the container's, `events` those about its pod. None where it has not ended."""
    end = last_end(status)
    if not end:
        return None
    restarts = int(status.get("restartCount", 0))
    said = " ".join(str(end.get("message", "")).split())
    if end.get("reason") == "OOMKilled":
        return _out_of_memory(spec, restarts)
    if end.get("reason") in _NOT_STARTED:
        return Trouble("ContainerConfigError", f"the container can't be started: {said or end['reason']}")
    looping = is_loop(status)
    if not leaving and was_stopped(status) and (probe := _probe_that_killed(spec, end, events)):
        return Trouble(PROBE_FAILED, probe, passing=not looping)
    message = f"the server ended by itself ({_cause(end)}), {restarts} restarts: see the pod's log"
    return Trouble(
        "CrashLoopBackOff" if looping else RESTARTS,
        message + (f"; it said: {said}" if said else ""),
        passing=not looping,
    )


def _out_of_memory(spec: Mapping[str, Any], restarts: int) -> Trouble:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
    if limit is None:
        return Trouble(
            "OOMKilled",
            f"the node has run out of memory and the server was killed ({restarts} restarts): set "
            "resources.requests.memory to what it needs, so that it gets a node that has it",
        )
    return Trouble(
        "OOMKilled",
        f"the server was killed for using more memory than its limit of {limit} ({restarts} restarts): raise "
        "resources.limits.memory, or ask for less with engine.kvCacheGiB, maxModelLen or engine.maxNumSeqs",
    )


def _cause(end: Mapping[str, Any]) -> str:
    code = end.get("exitCode")
    cause = f"exit code {code}" if not end.get("signal") else f"signal {end['signal']}"
    return f"{cause}, signal {code - 128}" if isinstance(code, int) and code > 128 else cause


def _probe_that_killed(spec: Mapping[str, Any], end: Mapping[str, Any], events: Iterable[Manifest]) -> str | None:
    """What to say where the kubelet ended the container for a probe that failed."""
    told = tuple(events)
    kills = (_KILLED.search(str(event.get("message", ""))) for event in told if _is_kill(event, end))
    probe = next((found[1] for found in kills if found is not None), None)
    if probe is None and not _spent(spec.get("startupProbe") or {}, end, told):
        return None
    probe = probe or "startup"
    words = _words(probe, told)
    if probe == "startup":
        what = (
            f"it did not answer /health within {_budget(spec.get('startupProbe') or {}):.0f} s (startup.timeoutSeconds)"
        )
    else:
        what = "it had stopped answering /health"
    answer = f"; the probe's last words: {words}" if words else ""
    return f"the {probe} probe failed and the kubelet ended the server: {what}: see the pod's log{answer}"


def _is_kill(event: Manifest, end: Mapping[str, Any]) -> bool:
    """Of this life of the container, not of an earlier one."""
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    return event.get("reason") == "Killing" and str(when) >= str(end.get("startedAt") or "")


def _spent(probe: Mapping[str, Any], end: Mapping[str, Any], events: Iterable[Manifest]) -> bool:
    """Whether it lived for the startup budget and the kubelet told of one failed startup probe after the other."""
    budget, lived = _budget(probe), _lived(end)
    if not budget or lived is None or not budget * 0.9 <= lived <= budget * 1.1 + 60:
        return False
    failures = sum(int(event.get("count") or 1) for event in events if _probe_of(event) == "startup")
    return failures >= min(_RATIONED, int(probe.get("failureThreshold", 3)))


def _budget(probe: Mapping[str, Any]) -> float:
    return float(probe.get("failureThreshold", 0) * probe.get("periodSeconds", 10))


def _lived(end: Mapping[str, Any]) -> float | None:
    begun, ended = end.get("startedAt"), end.get("finishedAt")
    if not begun or not ended:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()


def _probe_of(event: Manifest) -> str | None:
    found = _UNHEALTHY.match(str(event.get("message", ""))) if event.get("reason") == "Unhealthy" else None
    return found[1].lower() if found else None


def _words(probe: str, events: Iterable[Manifest]) -> str:
    """What the probe said most often: the same words from one look to the next."""
    said = [event for event in events if _probe_of(event) == probe]
    if not said:
        return ""
    most = max(said, key=lambda event: (int(event.get("count") or 1), str(event.get("message", ""))))
    found = _UNHEALTHY.match(str(most["message"]))
    return " ".join(found[2].split()) if found else ""
