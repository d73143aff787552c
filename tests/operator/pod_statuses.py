"""Pod statuses as a kubelet or scheduler writes them (shapes recorded from Kubernetes 1.36), for status and reconcile tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill.failures import Failure
from pagemill_operator.cluster.interface import Probe

CAPACITY = {
    "weightsBytes": 538_000_000,
    "kvCacheBytes": 536_870_912,
    "kvBlocks": 364,
    "maxConcurrentTokens": 11648,
    "maxModelLenThatFits": 8192,
}
SERVING = Probe(200, {"ready": True, "phase": "Serving", "percent": 100, "capacity": CAPACITY})


def loading(percent: int, phase: str = "LoadingWeights") -> Probe:
    return Probe(
        503, {"ready": False, "phase": phase, "percent": percent, "bytesLoaded": 1, "bytesTotal": 2, "capacity": None}
    )


def running(ready: bool, restarts: int = 0, last: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A container that runs; `last` is how it ended before."""
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return _scheduled("Running", state, ready, restarts, last)


def waiting(reason: str, message: str = "", restarts: int = 0, last: Mapping[str, Any] | None = None) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}
    return _scheduled("Running" if restarts else "Pending", state, False, restarts, last)


def ended(code: int, message: str = "", reason: str = "Error", restarts: int = 0) -> dict[str, Any]:
    return _scheduled("Running", {"terminated": end(code, message, reason)}, False, restarts, None)


def end(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    """A `terminated` state."""
    said = {"message": message} if message else {}
    return {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:00:09Z", **said}


def failed(failure: Failure, restarts: int = 0) -> dict[str, Any]:
    """Ended with the server's own line."""
    return ended(1, failure.to_line() + "\n", restarts=restarts)


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def _scheduled(
    phase: str, state: Mapping[str, Any], ready: bool, restarts: int, last: Mapping[str, Any] | None
) -> dict[str, Any]:
    container = {
        "name": "server",
        "state": dict(state),
        "lastState": {"terminated": dict(last)} if last else {},
        "restartCount": restarts,
        "ready": ready,
    }
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"phase": phase, "podIP": "10.1.0.9", "conditions": conditions, "containerStatuses": [container]}
