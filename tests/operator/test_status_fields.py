"""The status' fields beside the conditions' reasons: times, capacity, loading, where clients find it, and when to look again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator.cluster.interface import Probe
from pagemill_operator.conditions import stamp
from pagemill_operator.fleet import Wanted, standing, survey, wanted_of
from pagemill_operator.observe import World
from pagemill_operator.resource import read
from pagemill_operator.settings import Settings
from pagemill_operator.status import changes, look_again
from pagemill_operator.waiting import Trouble
from tests.operator.manifests import stored
from tests.operator.pod_statuses import CAPACITY, SERVING, ended, failed, loading, running, unscheduled, waiting
from tests.operator.status_worlds import DRAINS, GET_READY, NOW, Pod, condition, told, world

TOO_SMALL = Failure(
    FailureReason.KV_CACHE_TOO_SMALL,
    "one sequence of 9000 tokens needs more",
    {"maxModelLen": 1024, "engine.kvCacheGiB": 0.5},
)
NO_GPU = Pod(unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))


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
    hangs = running(False)
    hangs["containerStatuses"][0]["started"] = True
    silent = told(world(Pod(hangs, Probe(0, {})), spec={}), {}, previous=before)
    assert (silent["capacity"], condition(silent, "MemoryFit")) == (before["capacity"], condition(before, "MemoryFit"))
    assert "1 replicas have started and do not answer /ready" in condition(silent, "Ready")["message"]
    former = told(world(Pod(hangs, Probe(0, {})), spec={}), {}, previous={**before, "observedGeneration": 3})
    assert "capacity" not in former, "it may be another template's"
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


def test_a_replica_too_busy_to_answer_while_it_loads_changes_nothing() -> None:
    first = told(world(GET_READY, spec={}), {})
    busy = told(world(Pod(running(False), Probe(0, {})), spec={}), {}, previous=first, now=NOW + timedelta(minutes=2))
    assert changes(busy, first) == {}


@pytest.mark.parametrize("status", [waiting("ContainerCreating"), ended(1)])
def test_but_one_that_does_not_run_is_not_loading(status: Mapping[str, Any]) -> None:
    first = told(world(GET_READY, spec={}), {})
    other = told(world(Pod(status, Probe(0, {})), spec={}), {}, previous=first)
    assert "loading" not in other
    assert condition(other, "Progressing")["reason"] != "Loading"
    assert condition(other, "ModelAvailable")["status"] == "Unknown"
