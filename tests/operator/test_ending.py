"""How a container ended, from its state and the kubelet's events (shapes recorded from Kubernetes 1.36)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pagemill_operator.ending import ended_trouble, was_stopped

SPEC = {
    "name": "server",
    "resources": {"limits": {"memory": "2Gi"}},
    "startupProbe": {"periodSeconds": 2, "failureThreshold": 300},
}
REFUSED = 'Get "http://10.1.0.9:8000/health": dial tcp 10.1.0.9:8000: connect: connection refused'


def container(code: int, restarts: int = 0, waits: str | None = None, lived: int = 30, **end: Any) -> dict[str, Any]:
    """One that began at noon; `waits` is the reason for which the next start is held back."""
    minutes, seconds = divmod(lived, 60)
    ended = {
        "exitCode": code,
        "reason": "Error",
        "startedAt": "2026-01-01T12:00:00Z",
        "finishedAt": f"2026-01-01T12:{minutes:02}:{seconds:02}Z",
        **end,
    }
    state = {"waiting": {"reason": waits}} if waits else {"terminated": ended}
    return {"name": "server", "restartCount": restarts, "state": state, "lastState": {"terminated": ended}}


def unhealthy(probe: str, words: str = REFUSED, count: int = 1) -> dict[str, Any]:
    message = f"{probe} probe failed: {words}"
    return {"reason": "Unhealthy", "message": message, "count": count, "lastTimestamp": "2026-01-01T12:00:25Z"}


def killing(probe: str, when: str = "2026-01-01T12:00:29Z") -> dict[str, Any]:
    message = f"Container server failed {probe} probe, will be restarted"
    return {"type": "Normal", "reason": "Killing", "message": message, "lastTimestamp": when}


def told(
    status: Mapping[str, Any], *events: Mapping[str, Any], spec: Mapping[str, Any] = SPEC
) -> tuple[str, str, bool]:
    trouble = ended_trouble(spec, status, False, events)
    assert trouble is not None
    return trouble.reason, trouble.message, trouble.passing


def test_one_that_runs_for_the_first_time_has_not_ended() -> None:
    assert ended_trouble(SPEC, {"state": {"running": {}}, "lastState": {}, "restartCount": 0}, False, ()) is None


@pytest.mark.parametrize(
    ("status", "reason", "says", "passing"),
    [
        (container(1), "ServerEnded", "(exit code 1), 0 restarts", True),
        (container(139, 1), "ServerEnded", "(exit code 139, signal 11)", True),
        (container(1, 2), "CrashLoopBackOff", "2 restarts", False),
        (container(1, 1, "CrashLoopBackOff"), "CrashLoopBackOff", "1 restarts", False),
        (container(1, message="Traceback:\n no"), "ServerEnded", "it said: Traceback: no", True),
        (container(137, reason="OOMKilled"), "OOMKilled", "its limit of 2Gi (0 restarts)", False),
        (container(128, reason="StartError", message="no such file"), "ContainerConfigError", "no such file", False),
    ],
)
def test_an_end_is_told(status: Mapping[str, Any], reason: str, says: str, passing: bool) -> None:
    found, message, passes = told(status)
    assert (found, passes) == (reason, passing)
    assert says in message


@pytest.mark.parametrize("code", [0, 137, 143])
@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("startup", "did not answer /health within 600 s (startup.timeoutSeconds)"),
        ("liveness", "had stopped answering"),
    ],
)
def test_a_probe_that_kills_is_told_with_its_last_words(code: int, probe: str, says: str) -> None:
    reason, message, passing = told(container(code), unhealthy(probe.title()), killing(probe))
    assert (reason, passing) == ("ProbeFailed", True)
    assert says in message
    assert message.endswith(f"last words: {REFUSED}")


def test_in_a_loop_of_them_it_does_not_pass() -> None:
    assert told(container(137, 2), killing("startup"))[2] is False


@pytest.mark.parametrize(
    ("status", "events"),
    [
        (container(1), (killing("startup"),)),  # it ended by itself, as it said
        (container(137), (killing("liveness", "2026-01-01T11:59:59Z"),)),  # of an earlier life
        (container(137), (unhealthy("Startup"),)),  # a good start has one or two, before the port is bound
        (container(137), (unhealthy("Readiness", count=90),)),
        (container(137), ({"reason": "Killing", "message": "Stopping container server", "lastTimestamp": "2027"},)),
        (container(137, lived=600), ()),
        (container(137, lived=300), (unhealthy("Startup", count=20),)),  # the budget was not spent
    ],
)
def test_other_ends_are_not_a_probes(status: Mapping[str, Any], events: tuple[Mapping[str, Any], ...]) -> None:
    assert told(status, *events)[0] == "ServerEnded"


def test_a_spent_budget_is_told_although_the_kubelet_had_no_event_left() -> None:
    """It has 25 for a pod, and a startup probe that fails for ten minutes takes them all."""
    reason, message, _ = told(container(137, lived=605), unhealthy("Startup", count=22))
    assert reason == "ProbeFailed"
    assert "within 600 s" in message


def test_the_words_of_a_probe_stay_the_same_from_look_to_look() -> None:
    """Its events go on while the next start fails; what is said most often is told, whatever came last."""
    often, once = unhealthy("Startup", count=9), unhealthy("Startup", "context deadline exceeded")
    assert told(container(137), often, once, killing("startup")) == told(
        container(137), once, often, killing("startup")
    )


def test_a_pod_on_its_way_out_is_ended_by_nobodys_probe() -> None:
    trouble = ended_trouble(SPEC, container(137), True, (killing("liveness"),))
    assert trouble is not None
    assert trouble.reason == "ServerEnded"


@pytest.mark.parametrize(
    ("status", "needs"),
    [
        (container(0), True),
        (container(137, 3, "CrashLoopBackOff"), True),
        (container(137, reason="OOMKilled"), False),
        (container(1), False),
        ({"state": {"running": {}}}, False),
    ],
)
def test_events_are_asked_for_only_where_the_end_does_not_say_why(status: Mapping[str, Any], needs: bool) -> None:
    assert was_stopped(status) is needs
