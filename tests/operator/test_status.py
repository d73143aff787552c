"""What the status says of a world: a table of pods, and what must hold of every status."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator import crd
from pagemill_operator.cluster.interface import Probe
from pagemill_operator.conditions import stamp
from pagemill_operator.fleet import Wanted, standing, survey, wanted_of
from pagemill_operator.observe import World
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.settings import Settings
from pagemill_operator.status import changes, look_again, status
from pagemill_operator.waiting import Trouble
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.pod_statuses import (
    CAPACITY,
    SERVING,
    end,
    ended,
    failed,
    loading,
    running,
    unscheduled,
    waiting,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
DRAINS = "2026-01-01T18:00:00Z"
TOO_SMALL = Failure(
    FailureReason.KV_CACHE_TOO_SMALL,
    "one sequence of 9000 tokens needs more",
    {"maxModelLen": 1024, "engine.kvCacheGiB": 0.5},
)
NO_MODEL = Failure(FailureReason.MODEL_NOT_FOUND, "model org/name is not in /models: check its name")
QUOTA = 'pods "chat-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1'


class Pod(NamedTuple):
    """A pod of the present template."""

    status: Mapping[str, Any]
    answer: Probe | None = None
    former: bool = False  # of a former template
    leaving: str | None = None  # the end of its grace period


def world(
    *pods: Pod, spec: Mapping[str, Any], conditions: tuple[Mapping[str, str], ...] = (), seen: bool = True
) -> World:
    resource = read(stored(**spec))
    children = [copy.deepcopy(dict(child)) for child in render(resource, SETTINGS)]
    deployment = children[-1]
    deployment["metadata"]["generation"] = 3
    deployment["status"] = {"observedGeneration": 3 if seen else 2, "conditions": list(conditions)}
    made, answers = [], {}
    for number, pod in enumerate(pods):
        metadata = {**copy.deepcopy(deployment["spec"]["template"]["metadata"]), "name": f"chat-{number}"}
        if pod.former:
            metadata["annotations"] = {"pagemill.dev/template-hash": "former"}
        if pod.leaving:
            metadata["deletionTimestamp"] = pod.leaving
        made.append({"metadata": metadata, "status": pod.status})
        if pod.answer is not None:
            answers[f"chat-{number}"] = pod.answer
    return World(children=tuple(children), pods=tuple(made), probes=answers)


def told(
    seen: World,
    spec: Mapping[str, Any],
    refusal: Trouble | None = None,
    previous: Mapping[str, Any] | None = None,
    now: datetime = NOW,
) -> dict[str, Any]:
    resource = read(stored(generation=4, **spec))
    wanted = wanted_of(resource) if refusal is None else standing(seen)
    return status(resource.owner, resource.spec, survey(wanted, seen, now), seen, refusal, previous or {}, now)


def condition(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [one for one in body["conditions"] if one["type"] == kind]
    return dict(found)


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
GET_READY = Pod(running(False), loading(47))
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
        says="resources.limits.memory",
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
        ready="False ReplicaFailure",
        says=QUOTA,
        degraded="True ReplicaFailure",
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
    found = {one["type"]: f"{one['status']} {one['reason']}" for one in body["conditions"]}
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


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    load, serve = world(GET_READY, spec={}), world(Pod(running(True), SERVING), spec={})
    first = told(load, {})
    later = told(world(Pod(ended(1)), spec={}), {}, previous=first, now=NOW + timedelta(seconds=5))
    assert condition(later, "Ready")["lastTransitionTime"] == condition(first, "Ready")["lastTransitionTime"]
    assert condition(later, "Degraded")["lastTransitionTime"] == "2026-01-01T12:00:05Z"
    served = told(serve, {}, previous=later, now=NOW + timedelta(seconds=9))
    assert condition(served, "Ready")["lastTransitionTime"] == "2026-01-01T12:00:09Z"


def test_capacity_and_the_rest_of_a_serving_status() -> None:
    body = told(world(Pod(running(True), SERVING), spec={}), {})
    assert body["capacity"] == CAPACITY
    assert body["selector"] == "app.kubernetes.io/name=pagemill-server,pagemill.dev/deployment=chat"
    assert body["url"] == "http://chat.team.svc:8000/v1"
    assert body["image"] == "registry.example/server:cpu"
    assert (body["replicas"], body["readyReplicas"]) == (1, 1)
    assert "loading" not in body
    assert "11648 tokens at once in 364 blocks" in condition(body, "MemoryFit")["message"]


def test_the_smallest_replica_says_the_capacity() -> None:
    smaller = Probe(200, {**SERVING.body, "capacity": {**CAPACITY, "kvBlocks": 100}})
    seen = world(Pod(running(True), SERVING), Pod(running(True), smaller), spec={"replicas": 2})
    assert told(seen, {"replicas": 2})["capacity"]["kvBlocks"] == 100


def test_a_busy_replica_that_does_not_answer_keeps_what_was_known() -> None:
    before = told(world(Pod(running(True), SERVING), spec={}), {})
    busy = world(Pod(running(True), Probe(0, {})), spec={})
    assert told(busy, {}, previous=before) == before
    gone = told(world(Pod(ended(1)), spec={}), {}, previous=before)
    assert "capacity" not in gone
    assert changes(gone, before)["capacity"] is None


@pytest.mark.parametrize("body", [{}, {"phase": 3, "percent": "x", "capacity": {"kvBlocks": "many"}}, {"capacity": []}])
def test_a_strange_answer_is_no_answer(body: dict[str, Any]) -> None:
    told_of_it = told(world(Pod(running(True), Probe(200, body)), spec={}), {})
    assert "capacity" not in told_of_it
    assert condition(told_of_it, "Ready")["status"] == "True"


@pytest.mark.parametrize(("percent", "shown"), [(0, 0), (9, 0), (47, 40), (99, 90), (100, 100), (140, 100)])
def test_loading_goes_in_steps_of_ten(percent: int, shown: int) -> None:
    body = told(world(Pod(running(False), loading(percent)), spec={}), {})
    assert body["loading"] == {"phase": "LoadingWeights", "percent": shown, "time": stamp(NOW)}


@pytest.mark.parametrize(
    ("phase", "percent", "seconds", "shown"),
    [
        ("LoadingWeights", 60, 29, ("LoadingWeights", 20)),  # too soon
        ("LoadingWeights", 60, 30, ("LoadingWeights", 60)),
        ("LoadingWeights", 20, 300, ("LoadingWeights", 20)),  # nothing new: not even the time
        ("Warmup", 100, 1, ("Warmup", 100)),  # a new phase is news at once
    ],
)
def test_inside_a_phase_loading_is_written_every_half_minute_at_most(
    phase: str, percent: int, seconds: int, shown: tuple[str, int]
) -> None:
    first = told(world(Pod(running(False), loading(20)), spec={}), {})
    later = NOW + timedelta(seconds=seconds)
    then = told(world(Pod(running(False), loading(percent, phase)), spec={}), {}, previous=first, now=later)
    assert (then["loading"]["phase"], then["loading"]["percent"]) == shown
    assert then["loading"]["time"] == stamp(NOW if then["loading"]["percent"] == 20 else later)


def test_the_slowest_replica_says_how_far_loading_is() -> None:
    pods = (Pod(running(False), loading(80)), Pod(running(False), loading(20)), Pod(running(True), SERVING))
    assert told(world(*pods, spec={"replicas": 3}), {"replicas": 3})["loading"]["percent"] == 20


def test_memory_advice_names_the_values_that_would_work() -> None:
    message = condition(told(world(Pod(failed(TOO_SMALL)), spec={}), {}), "MemoryFit")["message"]
    assert message.endswith("would work: maxModelLen: 1024 or engine.kvCacheGiB: 0.5")


def test_a_high_utilization_is_warned_of() -> None:
    spec = {"accelerator": None, "gpuMemoryUtilization": 0.97}
    fit = condition(told(world(Pod(running(True), SERVING), spec=spec), spec), "MemoryFit")
    assert fit["status"] == "True"
    assert "gpuMemoryUtilization 0.97 is above 0.95" in fit["message"]


def test_a_refusal_is_told_and_what_runs_is_counted() -> None:
    seen = world(Pod(running(True), SERVING), spec={"replicas": 2})
    body = told(seen, {"replicas": 5}, Trouble("UnsupportedField", "spec.routing is not served by this release"))
    assert condition(body, "Ready") == {
        **condition(body, "Ready"),
        "status": "False",
        "reason": "UnsupportedField",
        "message": "spec.routing is not served by this release; 1 of 2 replicas answer",
    }
    assert condition(body, "Degraded")["status"] == "True"
    assert body["ready"] == "1/2"


def test_draining() -> None:
    body = told(world(Pod(running(True), SERVING), Pod(running(True), SERVING, leaving=DRAINS), spec={}), {})
    assert condition(body, "Draining")["status"] == "True"
    assert body["replicas"] == 1


def test_a_revision_that_is_named_is_shown() -> None:
    spec = {"model": "hf://org/name@v2"}
    assert told(world(spec=spec), spec)["modelRevision"] == "v2"


@pytest.mark.parametrize(
    ("service", "url"),
    [
        ({}, "http://chat.team.svc:8000/v1"),
        ({"loadBalancer": {"ingress": [{"ip": "10.1.2.3"}]}}, "http://10.1.2.3:8000/v1"),
        ({"loadBalancer": {"ingress": [{"ip": "fd00::1"}]}}, "http://[fd00::1]:8000/v1"),
        (
            {"loadBalancer": {"ingress": [{"hostname": "lb.example", "ports": [{"port": 80}]}]}},
            "http://lb.example:80/v1",
        ),
    ],
)
def test_the_url_is_where_clients_reach_it(service: dict[str, Any], url: str) -> None:
    seen = world(Pod(running(True), SERVING), spec={})
    (found,) = [child for child in seen.children if child["kind"] == "Service"]
    found["status"] = service  # type: ignore[index]
    assert told(seen, {})["url"] == url


@pytest.mark.parametrize(
    ("pods", "capacity", "seconds"),
    [
        ((GET_READY,), None, Settings().look_again_seconds),
        ((Pod(running(True), Probe(0, {})),), None, Settings().settle_seconds),
        ((Pod(running(True), SERVING),), CAPACITY, None),
        ((Pod(unscheduled("no")),), None, None),
        ((NO_GPU, Pod(running(False), leaving=DRAINS)), None, Settings().settle_seconds),
        ((Pod(waiting("ContainerCreating")),), None, Settings().settle_seconds),
        ((), None, None),
    ],
)
def test_another_look_is_worth_it_where_no_event_tells(
    pods: tuple[Pod, ...], capacity: Any, seconds: float | None
) -> None:
    seen = world(*pods, spec={})
    assert look_again(survey(wanted_of(read(stored())), seen, NOW), capacity, False, Settings()) == seconds


def test_without_a_deployment_nothing_is_wanted_of_before() -> None:
    assert standing(World()) == Wanted(0, None)
