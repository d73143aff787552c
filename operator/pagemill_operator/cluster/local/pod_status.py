"""The status of a pod as the kubelet would write it: pure functions from what happened to the container to the object.

`pod` calls them after every event; the reconcile reads the result and can't tell it from a real kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Manifest

LOCAL_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The one container of a pod. `state` and `last_state` are Kubernetes' own shapes (waiting, running, terminated)."""

    state: Mapping[str, Any]
    last_state: Mapping[str, Any]
    restarts: int
    started: bool  # its startup probe has passed
    ready: bool


CREATING = ContainerView({"waiting": {"reason": "ContainerCreating"}}, {}, 0, False, False)


def unschedulable(pod: Manifest, message: str, time: str) -> dict[str, Any]:
    """A pod that no machine can take, with what is wanting."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": time,
    }
    return {"phase": "Pending", "conditions": with_conditions(conditions_of(pod), condition)}


def scheduled(pod: Manifest, view: ContainerView, time: str) -> dict[str, Any]:
    """A pod on this machine, whatever its container is doing."""
    container = pod["spec"]["containers"][0]
    unready = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{container['name']}]"}
    readiness = [
        {"type": kind, "status": str(view.ready), "lastTransitionTime": time, **({} if view.ready else unready)}
        for kind in ("ContainersReady", "Ready")
    ]
    settled = [{"type": kind, "status": "True", "lastTransitionTime": time} for kind in ("PodScheduled", "Initialized")]
    before = pod.get("status") or {}
    return {
        "phase": "Running" if "running" in view.state or view.restarts or view.last_state else "Pending",
        "hostIP": LOCAL_ADDRESS,
        "podIP": LOCAL_ADDRESS,
        "startTime": before.get("startTime", time),
        "conditions": with_conditions(before.get("conditions") or (), *settled, *readiness),
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "state": dict(view.state),
                "lastState": dict(view.last_state),
                "restartCount": view.restarts,
                "started": view.started,
                "ready": view.ready,
            }
        ],
    }


def with_conditions(before: Sequence[Mapping[str, Any]], *wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`before` with `wanted` put in; lastTransitionTime stays where the status does not flip."""
    merged = {condition["type"]: dict(condition) for condition in before}
    for condition in wanted:
        old = merged.get(condition["type"])
        same = old is not None and old["status"] == condition["status"]
        kept = {"lastTransitionTime": old["lastTransitionTime"]} if old is not None and same else {}
        merged[condition["type"]] = {**condition, **kept}
    return list(merged.values())


def conditions_of(found: Manifest) -> Sequence[Mapping[str, Any]]:
    return (found.get("status") or {}).get("conditions") or ()


def is_ready(pod: Manifest) -> bool:
    """Whether the pod's Ready condition is true (a terminating pod may still be ready)."""
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions_of(pod))
