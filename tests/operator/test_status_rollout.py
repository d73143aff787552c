"""The status while something changes: a rollout that fails, more replicas, a preflight, what lacks beside the replicas."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator.apply import Refusal
from pagemill_operator.preflight import Preflight
from pagemill_operator.status import changes, refused
from pagemill_operator.waiting import Trouble
from tests.operator.pod_statuses import CAPACITY, SERVING, ended, failed, loading, running, unscheduled, waiting
from tests.operator.status_worlds import DRAINS, GET_READY, NOW, Pod, answers, condition, told, world

SERVES = Pod(running(True), SERVING)
FORMER = SERVES._replace(former=True)
NO_IMAGE = Pod(waiting("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: not found'))
GATED = Trouble("GatedModel", "ask for access to org/name")


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (NO_IMAGE, "ImagePullFailure"),
        (Pod(failed(Failure(FailureReason.KV_CACHE_TOO_SMALL, "too small"))), "KVCacheTooSmall"),
        (Pod(unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")), "Unschedulable"),
        (Pod(ended(1, restarts=3)), "CrashLoopBackOff"),
    ],
)
def test_a_rollout_that_fails_is_told_while_the_former_replicas_serve(pod: Pod, reason: str) -> None:
    body = told(world(FORMER, FORMER, pod, spec={"replicas": 3}), {"replicas": 3})
    found = answers(body)
    assert found["Ready"] == "False RolloutFailed"
    assert found["Progressing"] == "False RolloutFailed"
    assert found["Degraded"] == f"True {reason}"
    message = condition(body, "Progressing")["message"]
    assert f"{reason}: " in message
    assert message.endswith("2 replicas of the former spec serve")


def test_a_rollout_whose_first_pod_is_refused_has_failed() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": 'pods "chat-1" is forbidden: exceeded quota: few'}
    found = answers(told(world(FORMER, spec={}, conditions=(refused,)), {}))
    assert (found["Progressing"], found["Degraded"]) == ("False RolloutFailed", "True QuotaExceeded")


def test_a_replica_that_ended_once_has_not_failed_a_rollout() -> None:
    assert answers(told(world(FORMER, Pod(ended(1)), spec={}), {}))["Progressing"] == "True ServerEnded"


def test_where_nothing_of_the_former_spec_serves_the_trouble_itself_is_told() -> None:
    assert answers(told(world(Pod(ended(1), former=True), NO_IMAGE, spec={}), {}))["Ready"] == "False ImagePullFailure"


def served(replicas: int = 1) -> dict[str, Any]:
    spec = {"replicas": replicas}
    return told(world(*[SERVES] * replicas, spec=spec), spec)


def test_replicas_that_are_added_leave_ready_what_serves() -> None:
    spec = {"replicas": 3}
    first = told(world(SERVES, spec=spec, seen=False), spec, previous=served())
    assert answers(first)["Ready"] == "True Scaling"
    assert answers(first)["Progressing"].startswith("True")
    second = told(world(SERVES, SERVES, GET_READY, spec=spec), spec, previous=first)
    assert answers(second)["Ready"] == "True Scaling"
    assert condition(second, "Ready")["message"] == "2 of 3 replicas answer, the others are on their way"
    last = told(world(SERVES, SERVES, SERVES, spec=spec), spec, previous=second, now=NOW + timedelta(minutes=1))
    assert answers(last)["Ready"] == "True Serving"
    assert condition(last, "Ready")["lastTransitionTime"] == condition(first, "Ready")["lastTransitionTime"]


@pytest.mark.parametrize(
    "pods",
    [
        (SERVES, NO_IMAGE),  # the one that is added is in trouble
        (GET_READY, GET_READY),  # the one that served no longer does
        (FORMER, GET_READY),  # another spec
    ],
)
def test_but_not_where_that_would_be_a_lie(pods: tuple[Pod, ...]) -> None:
    spec = {"replicas": 2}
    assert answers(told(world(*pods, spec=spec), spec, previous=served()))["Ready"].startswith("False")


def test_a_replica_that_is_lost_is_no_scaling() -> None:
    spec = {"replicas": 2}
    assert answers(told(world(SERVES, GET_READY, spec=spec), spec, previous=served(2)))["Ready"] == "False Loading"
    growing = told(world(SERVES, SERVES, spec={"replicas": 3}), {"replicas": 3}, previous=served(2))
    fewer = told(world(SERVES, GET_READY, spec={"replicas": 3}), {"replicas": 3}, previous=growing)
    assert (answers(growing)["Ready"], answers(fewer)["Ready"]) == ("True Scaling", "False Loading")


def test_what_serves_stays_ready_while_the_controller_takes_up_a_change() -> None:
    spec = {"replicas": 2}
    body = told(world(SERVES, SERVES, SERVES, spec=spec, seen=False), spec, previous=served(3))
    assert answers(body)["Ready"] == "True Serving"
    assert answers(body)["Progressing"] == "True ScalingDown"


def test_waking_from_zero_is_not_ready_before_a_replica_answers() -> None:
    asleep = told(world(spec={"replicas": 0}), {"replicas": 0})
    assert answers(told(world(GET_READY, spec={}), {}, previous=asleep))["Ready"] == "False Loading"


def test_a_replica_that_drains_before_it_goes_is_not_loading() -> None:
    drains = Pod(running(False), loading(100, "Draining"))
    body = told(world(SERVES, drains, spec={}), {}, previous=served(2))
    assert answers(body)["Ready"] == "True Serving"
    assert answers(body)["Progressing"] == "True ScalingDown"
    assert answers(body)["Draining"] == "True ReplicasLeave"


def test_one_that_should_be_gone_is_named() -> None:
    body = told(world(SERVES._replace(leaving="2026-01-01T11:00:00Z"), SERVES, spec={}), {})
    assert answers(body)["Draining"] == "True ReplicasOverdue"
    assert "chat-0 should have ended" in condition(body, "Draining")["message"]
    assert (
        answers(told(world(SERVES._replace(leaving=DRAINS), SERVES, spec={}), {}))["Draining"] == "True ReplicasLeave"
    )


def test_a_preflight_that_runs() -> None:
    before = Preflight(passed=False, running="the model is being fetched: 40%")
    body = told(world(spec={}), {}, before=before)
    assert answers(body)["Progressing"] == "True Preflight"
    assert condition(body, "Ready")["message"] == "the model is being fetched: 40%; 0 of 1 replicas answer"
    assert answers(body)["Degraded"] == "False AsWanted"


def test_a_preflight_holds_back_ready_while_the_former_replicas_serve() -> None:
    body = told(world(FORMER, spec={}), {}, before=Preflight(passed=False), previous=served())
    assert answers(body)["Ready"] == "False Preflight"
    assert "1 of the former spec" in condition(body, "Ready")["message"]


@pytest.mark.parametrize(
    ("trouble", "besides"),
    [
        (GATED, "ModelAvailable"),
        (Trouble("KVCacheTooSmall", "maxModelLen 1024 would fit"), "MemoryFit"),
        (Trouble("Unschedulable", "no node"), None),
    ],
)
def test_a_preflight_that_fails_is_the_deployments_trouble(trouble: Trouble, besides: str | None) -> None:
    found = answers(told(world(spec={}), {}, before=Preflight(passed=False, trouble=trouble)))
    assert found["Ready"] == found["Progressing"] == f"False {trouble.reason}"
    assert found["Degraded"] == f"True {trouble.reason}"
    for kind in ("MemoryFit", "ModelAvailable"):
        assert found[kind].startswith("False" if kind == besides else "Unknown")


def test_a_preflight_that_fails_stops_a_rollout_before_it_begins() -> None:
    body = told(world(FORMER, spec={}), {}, before=Preflight(passed=False, trouble=GATED), previous=served())
    found = answers(body)
    assert found["Ready"] == found["Progressing"] == "False RolloutFailed"
    assert found["Degraded"] == "True GatedModel"
    assert found["ModelAvailable"] == "False GatedModel"
    said = "the rollout has stopped before its first replica: GatedModel: ask for access to org/name; 1 replica of the former"
    assert condition(body, "Progressing")["message"].startswith(said)


def test_a_spec_that_is_refused_is_no_rollout() -> None:
    refusal = Trouble("UnsupportedField", "spec.routing is not served by this release")
    body = told(world(FORMER, SERVES, spec={}), {}, refusal)
    assert answers(body)["Ready"] == "False UnsupportedField"


def test_what_a_preflight_found_is_shown_before_a_replica_has_loaded() -> None:
    body = told(world(spec={}), {}, before=Preflight(True, revision="abc123", capacity=CAPACITY, fit="Fits"))
    assert body["modelRevision"] == "abc123"
    assert answers(body)["ModelAvailable"] == "True Found"
    assert "revision abc123" in condition(body, "ModelAvailable")["message"]
    assert answers(body)["MemoryFit"] == "True Fits"
    assert "will hold 11648 tokens" in condition(body, "MemoryFit")["message"]
    assert "capacity" not in body, "that is measured"


def test_a_preflight_that_cannot_know_the_memory_refuses_nothing() -> None:
    body = told(world(GET_READY, spec={}), {}, before=Preflight(True, fit="Unknown"))
    assert answers(body)["MemoryFit"] == "Unknown NotKnown"
    assert "set gpu.memoryGiB" in condition(body, "MemoryFit")["message"]
    measured = told(world(SERVES, spec={}), {}, before=Preflight(True, fit="Unknown"))
    assert answers(measured)["MemoryFit"] == "True Fits"


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal("HTTPRoute", "HTTPRoute chat: no HTTPRoute", no_such_kind=True), "GatewayUnavailable"),
        (Refusal("InferencePool", "InferencePool chat: none", no_such_kind=True), "GatewayUnavailable"),
        (Refusal("PodMonitor", "PodMonitor chat: none", no_such_kind=True), "MonitoringUnavailable"),
        (Refusal("PodMonitor", "PodMonitor chat: 403"), "MonitoringUnavailable"),
        (Refusal("ScaledObject", "ScaledObject chat: none", no_such_kind=True), "KedaUnavailable"),
        (Refusal("TriggerAuthentication", "TriggerAuthentication chat: 403"), "KedaUnavailable"),
        (Refusal("HTTPRoute", "HTTPRoute chat: 422"), "ApplyRefused"),
        (Refusal("PodDisruptionBudget", "PodDisruptionBudget chat: 403"), "ApplyRefused"),
        (Refusal("Pod", "Pod chat-0: 403"), "ApplyRefused"),
    ],
)
def test_what_lacks_beside_the_replicas_degrades_and_leaves_ready_to_them(refusal: Refusal, reason: str) -> None:
    serious, beside = refused((refusal,))
    assert serious is None
    body = told(world(SERVES, spec={}), {}, beside=beside)
    assert answers(body)["Ready"] == "True Serving"
    assert answers(body)["Progressing"] == "False Settled"
    assert answers(body)["Degraded"] == f"True {reason}"
    assert refusal.message in condition(body, "Degraded")["message"]


def test_what_is_needed_goes_before_what_is_beside() -> None:
    refusals = (Refusal("PodMonitor", "PodMonitor chat: none"), Refusal("Service", "Service chat: 403"))
    serious, beside = refused(refusals)
    assert serious is not None
    body = told(world(SERVES, spec={}), {}, serious, beside=beside)
    assert answers(body)["Ready"] == answers(body)["Degraded"].replace("True", "False") == "False ApplyRefused"
    assert "PodMonitor chat" in condition(body, "Degraded")["message"]


def test_a_growing_deployment_that_does_not_change_is_not_written_again() -> None:
    spec = {"replicas": 3}
    first = told(world(SERVES, GET_READY, GET_READY, spec=spec), spec, previous=served())
    again = told(world(SERVES, GET_READY, GET_READY, spec=spec), spec, previous=first, now=NOW + timedelta(hours=1))
    assert changes(again, first) == {}
