"""What the status says of a world: a table of pods, and what must hold of every status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator import crd
from pagemill_operator.status import changes
from tests.operator.pod_statuses import SERVING, end, ended, failed, loading, running, unscheduled, waiting
from tests.operator.status_worlds import DRAINS, GET_READY, NOW, Pod, answers, condition, told, world

TOO_SMALL = Failure(
    FailureReason.KV_CACHE_TOO_SMALL,
    "one sequence of 9000 tokens needs more",
    {"maxModelLen": 1024, "engine.kvCacheGiB": 0.5},
)
NO_MODEL = Failure(FailureReason.MODEL_NOT_FOUND, "model org/name is not in /models: check its name")
QUOTA = 'pods "chat-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1'


class Case(NamedTuple):
    """`ready`, `degraded` and so on are "Status Reason"."""

    pods: tuple[Pod, ...]
    ready: str
    says: str = ""
    degraded: str = "False AsWanted"
    progressing: str | None = None
    memory: str | None = None
    model: str | None = None
    shown: str = "0/1"
    spec: Mapping[str, Any] = {}
    conditions: tuple[Mapping[str, str], ...] = ()
    seen: bool = True


EVICTED = Pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory", "podIP": "10.1.0.9"})
NO_GPU = Pod(unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
CASES: dict[str, Case] = {
    "serving": Case(
        (Pod(running(True), SERVING),),
        ready="True Serving",
        says="1 of 1 replicas answer",
        progressing="False Settled",
        memory="True Fits",
        model="True Found",
        shown="1/1",
    ),
    "no pod yet": Case((), ready="False Starting", progressing="True Starting", memory="Unknown NotMeasured"),
    "not seen by the controller yet": Case(
        (Pod(running(True), SERVING),), ready="False Creating", shown="1/1", seen=False
    ),
    "loading": Case((GET_READY,), ready="False Loading", progressing="True Loading", model="True Found", says="0 of 1"),
    "loaded, not probed yet": Case(
        (Pod(running(False), SERVING),), ready="False Starting", model="True Found", says="loaded"
    ),
    "starting, no word on the model yet": Case(
        (Pod(running(False), loading(0, "Starting")),), "False Loading", model="Unknown NotLookedYet"
    ),
    "one of two": Case(
        (Pod(running(True), SERVING), GET_READY),
        ready="False Loading",
        says="1 of 2",
        shown="1/2",
        spec={"replicas": 2},
    ),
    "one of two crashes": Case(
        (Pod(running(True), SERVING), Pod(waiting("CrashLoopBackOff", restarts=4, last=end(139)))),
        ready="False CrashLoopBackOff",
        says="exit code 139, signal 11",
        degraded="True CrashLoopBackOff",
        progressing="False CrashLoopBackOff",
        memory="True Fits",
        shown="1/2",
        spec={"replicas": 2},
    ),
    "ended once": Case(
        (Pod(ended(137)),),
        ready="False ServerEnded",
        degraded="True ServerEnded",
        progressing="True ServerEnded",
        says="signal 9",
    ),
    "ended, loads again": Case(
        (Pod(running(False, restarts=1, last=end(137)), loading(30)),),
        ready="False ServerEnded",
        degraded="True ServerEnded",
        progressing="True ServerEnded",
    ),
    "ended, serves again": Case(
        (Pod(running(True, restarts=1, last=end(137)), SERVING),),
        ready="True Serving",
        shown="1/1",
        progressing="False Settled",
    ),
    "crash loop between two waits": Case(
        (Pod(running(False, restarts=2, last=end(1)), loading(0)),),
        ready="False CrashLoopBackOff",
        degraded="True CrashLoopBackOff",
    ),
    "out of memory": Case(
        (Pod(waiting("CrashLoopBackOff", restarts=1, last=end(137, reason="OOMKilled"))),),
        ready="False OOMKilled",
        says="more memory than its limit of 4Gi",
        degraded="True OOMKilled",
        memory="False OOMKilled",
        spec={"resources": {"limits": {"memory": "4Gi"}}},
    ),
    "out of memory without a limit": Case(
        (Pod(ended(137, reason="OOMKilled")),),
        ready="False OOMKilled",
        says="resources.requests.memory",
        degraded="True OOMKilled",
        memory="False OOMKilled",
    ),
    "cache too small": Case(
        (Pod(failed(TOO_SMALL)),),
        ready="False KVCacheTooSmall",
        degraded="True KVCacheTooSmall",
        progressing="False KVCacheTooSmall",
        memory="False KVCacheTooSmall",
        model="Unknown NotLookedYet",
        says="one sequence of 9000 tokens needs more",
    ),
    "cache too small, in back-off": Case(
        (Pod(waiting("CrashLoopBackOff", restarts=3, last=end(1, TOO_SMALL.to_line()))),),
        "False KVCacheTooSmall",
        degraded="True KVCacheTooSmall",
        memory="False KVCacheTooSmall",
    ),
    "no model": Case(
        (Pod(failed(NO_MODEL)),),
        ready="False ModelNotFound",
        degraded="True ModelNotFound",
        model="False ModelNotFound",
        says="check its name",
    ),
    "the server's word goes before a crash": Case(
        (Pod(waiting("CrashLoopBackOff", restarts=3, last=end(1))), Pod(failed(NO_MODEL))),
        ready="False ModelNotFound",
        degraded="True ModelNotFound",
        shown="0/2",
        spec={"replicas": 2},
    ),
    "no image": Case(
        (Pod(waiting("ImagePullBackOff", "not found")),), "False ImagePullFailure", degraded="True ImagePullFailure"
    ),
    "no node": Case(
        (NO_GPU,),
        ready="False Unschedulable",
        says="no node has enough nvidia.com/gpu",
        degraded="True Unschedulable",
    ),
    "no claim": Case(
        (Pod(unscheduled("pod has unbound immediate PersistentVolumeClaims")),),
        ready="False ClaimPending",
        says="claim chat-models is pending",
        degraded="True ClaimPending",
        spec={"modelCache": {"size": "1Gi"}},
    ),
    "evicted": Case(
        (EVICTED,),
        "False Evicted",
        degraded="True Evicted",
        says="low on memory",
    ),
    "evicted, another one is there": Case(
        (EVICTED, Pod(running(True), SERVING)), ready="True Serving", progressing="False Settled", shown="1/1"
    ),
    "evicted, another one loads": Case((EVICTED, GET_READY), ready="False Loading", progressing="True Loading"),
    "evicted of the former spec": Case(
        (EVICTED._replace(former=True), Pod(running(True), SERVING)),
        ready="True Serving",
        progressing="False Settled",
        shown="1/1",
    ),
    "no node until the former one has drained": Case(
        (Pod(running(False), former=True, leaving=DRAINS), NO_GPU),
        ready="False WaitingForPlace",
        progressing="True WaitingForPlace",
        says="1 replicas finish what they run",
    ),
    "no node, and the former one is lost with its own": Case(
        (Pod(running(False), former=True, leaving="2026-01-01T11:59:00Z"), NO_GPU),
        ready="False Unschedulable",
        degraded="True Unschedulable",
    ),
    "no node, whoever drains": Case(
        (Pod(running(False), leaving=DRAINS), Pod(unscheduled("1 node(s) had untolerated taint(s)"))),
        ready="False Unschedulable",
        degraded="True Unschedulable",
    ),
    "a crash is told while others drain": Case(
        (Pod(running(False), leaving=DRAINS), NO_GPU, Pod(ended(1))),
        ready="False ServerEnded",
        degraded="True ServerEnded",
        shown="0/2",
        spec={"replicas": 2},
    ),
    "quota": Case(
        (),
        ready="False QuotaExceeded",
        says=QUOTA,
        degraded="True QuotaExceeded",
        conditions=({"type": "ReplicaFailure", "status": "True", "message": QUOTA},),
    ),
    "deadline": Case(
        (Pod(running(False)),),
        ready="False ProgressDeadline",
        degraded="True ProgressDeadline",
        conditions=({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},),
    ),
    "deadline, but it loads": Case(
        (GET_READY,),
        ready="False Loading",
        conditions=({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},),
    ),
    "rolling out": Case(
        (Pod(running(True), SERVING, former=True), GET_READY),
        ready="False RollingOut",
        progressing="True RollingOut",
        says="0 of 1 replicas answer, and 1 of the former spec",
    ),
    "a crash of the former spec is no trouble of this one": Case(
        (Pod(ended(1), former=True), GET_READY), ready="False RollingOut", progressing="True RollingOut"
    ),
    "scaled to zero": Case(
        (), ready="True ScaledToZero", progressing="False ScaledToZero", shown="0/0", spec={"replicas": 0}
    ),
    "suspended, the last one drains": Case(
        (Pod(running(True), SERVING, leaving=DRAINS),),
        ready="True ScaledToZero",
        progressing="True ScalingDown",
        shown="0/0",
        spec={"replicas": 3, "suspend": True},
    ),
    "a replica too many leaves": Case(
        (Pod(running(True), SERVING), Pod(ended(1))), ready="True Serving", progressing="True ScalingDown", shown="1/1"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_world_is_told(case: Case) -> None:
    body = told(world(*case.pods, spec=case.spec, conditions=case.conditions, seen=case.seen), case.spec)
    expected = {
        "Ready": case.ready,
        "Degraded": case.degraded,
        "Progressing": case.progressing,
        "MemoryFit": case.memory,
        "ModelAvailable": case.model,
    }
    found = answers(body)
    assert {kind: found[kind] for kind, wanted in expected.items() if wanted is not None} == {
        kind: wanted for kind, wanted in expected.items() if wanted is not None
    }
    assert case.says in condition(body, "Ready")["message"]
    assert body["ready"] == case.shown


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_status_is_the_crds_and_stays(case: Case) -> None:
    """What the schema lacks would be pruned and written for ever; what a second look changes would be as well."""
    seen = world(*case.pods, spec=case.spec, conditions=case.conditions, seen=case.seen)
    body = told(seen, case.spec)
    schema = crd.document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    _assert_in_schema(body, schema, "status")
    assert body["observedGeneration"] == 4
    assert {one["observedGeneration"] for one in body["conditions"]} == {4}
    assert all(one["message"] and one["reason"] for one in body["conditions"])
    again = told(seen, case.spec, previous=body, now=NOW + timedelta(hours=1))
    assert changes(again, body) == {}


def _assert_in_schema(value: Any, schema: Mapping[str, Any], path: str) -> None:
    if isinstance(value, dict):
        for name, field in value.items():
            assert name in schema["properties"], f"{path}.{name}"
            _assert_in_schema(field, schema["properties"][name], f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            _assert_in_schema(one, schema["items"], f"{path}[]")
