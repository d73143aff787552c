"""Kubernetes Events about an LLMDeployment: one for each condition that says something else than before.

Pure: (owner, previous status, new status, now) → manifests. An event's name follows from what changed, and from nothing else:
whoever says it a second time (after a crash between event and status, or a second operator) finds it there, and a condition that
goes to and fro between two reasons while its status stays says each once. Called by `reconcile`; `announce` posts them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.conditions import stamp
from pagemill_operator.labels import API_VERSION, FIELD_MANAGER, KIND
from pagemill_operator.resource import Owner

_LONGEST = 1024  # characters of a message, Kubernetes' limit for the newer kind of events
# What is so before anybody has looked: to find it so is no news.
_AT_FIRST = {"Ready": "False", "Degraded": "False", "Draining": "False"}


def events(owner: Owner, previous: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> tuple[Manifest, ...]:
    """In the order of the conditions, and the scaling decision last; none where only messages, counts or loading have moved."""
    told = [_event(owner, old, found, new, now) for old, found in _changed(previous, new)]
    before, decided = previous.get("autoscaling") or {}, new.get("autoscaling") or {}
    if decided and before != decided and decided["decision"] != "Hold":
        told.append(_decision(owner, before, decided, now))
    return tuple(told)


def _changed(
    previous: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(before, after) of each condition that is news."""
    before = {condition["type"]: condition for condition in previous.get("conditions") or ()}
    after = {condition["type"]: condition for condition in new.get("conditions") or ()}
    for kind, found in after.items():
        old = before.get(kind) or {"status": _AT_FIRST.get(kind, "Unknown"), "reason": "", "lastTransitionTime": ""}
        flipped = old["status"] != found["status"]
        if not flipped and (not old["reason"] or old["reason"] == found["reason"]):
            continue
        if kind == "Ready" and not flipped and found["reason"] == after.get("Progressing", {}).get("reason"):
            continue  # a step on the way, and Progressing says it
        yield old, found


def _event(
    owner: Owner, old: Mapping[str, Any], found: Mapping[str, Any], new: Mapping[str, Any], now: datetime
) -> Manifest:
    change = (
        *(owner.uid, str(found["observedGeneration"]), found["type"]),
        *(old["status"], old["reason"], old["lastTransitionTime"], found["status"], found["reason"]),
    )
    text = f"{found['type']}={found['status']}: {found['message']}"
    return _manifest(owner, change, "Warning" if _is_bad(found, new) else "Normal", found["reason"], text, now)


def _decision(owner: Owner, before: Mapping[str, Any], decided: Mapping[str, Any], now: datetime) -> Manifest:
    """Of how many replicas there are to be. A hold for want of signals is told by ScalingActive."""
    former, desired = before.get("desired"), decided["desired"]
    change = (owner.uid, "autoscaling", json.dumps([before, decided], sort_keys=True))
    acted = decided.get("lastScaleTime") != before.get("lastScaleTime")
    verb = f"Scaled{decided['decision']}" if acted else f"Recommended{decided['decision']}"
    text = f"{desired} replicas" if former is None else f"from {former} to {desired} replicas"
    return _manifest(owner, change, "Normal", verb, f"{text}: {decided['reason']}", now)


def _manifest(owner: Owner, change: Iterable[str], kind: str, reason: str, message: str, now: datetime) -> Manifest:
    key, time = owner.key, stamp(now)
    name = hashlib.sha256("\0".join(change).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{name}", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": key.namespace,
            "name": key.name,
            "uid": owner.uid,
        },
        "type": kind,
        "reason": reason,
        "message": _cut(message),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def _is_bad(found: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether somebody should look."""
    if found["type"] in ("MemoryFit", "ModelAvailable"):
        return bool(found["status"] == "False")
    if found["type"] in ("Ready", "Progressing"):
        troubles = {one["reason"] for one in new["conditions"] if one["type"] == "Degraded" and one["status"] == "True"}
        return found["status"] == "False" and found["reason"] in {*troubles, "RolloutFailed"}
    return bool(found["type"] == "Degraded" and found["status"] == "True")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
