"""Who decides how many replicas there are, and what a switch of who decides does: over worlds, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Probe
from pagemill_operator.errors import PrometheusError
from pagemill_operator.observe import World
from pagemill_operator.queries import signal_queries
from pagemill_operator.render_scaled_object import scaler
from pagemill_operator.resource import read
from pagemill_operator.scaling import Memory, Scaled, scale
from pagemill_operator.settings import Settings
from tests.operator.manifests import stored

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = 300
PROMETHEUS = {"url": "http://prometheus:9090"}
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m",engine="0"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m",engine="0"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m",engine="0"}} {usage}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{model_name="m",engine="0"}} 0
# TYPE pagemill:max_num_seqs gauge
pagemill:max_num_seqs{{model_name="m",engine="0"}} 16
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.1"}} 0
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} 0
vllm:time_to_first_token_seconds_count 0
vllm:time_to_first_token_seconds_sum 0
"""


def page(running: float = 0, waiting: float = 0, usage: float = 0.0) -> str:
    return PAGE.format(running=running, waiting=waiting, usage=usage)


def world(replicas: int | None, pages: list[str | None], loading: int = 0, held: int | None = 0) -> World:
    """A Deployment of so many, as many pods that serve as there are pages, and some that load."""
    children = (
        ()
        if replicas is None
        else ({"kind": "Deployment", "metadata": {"name": "chat"}, "spec": {"replicas": replicas}},)
    )
    names = [f"chat-{number}" for number in range(len(pages) + loading)]
    pods = tuple({"metadata": {"name": name}, "status": {"phase": "Running", "podIP": "10.0.0.1"}} for name in names)
    probes = {name: Probe(200 if number < len(pages) else 503, {}) for number, name in enumerate(names)}
    answered = dict(zip(names, pages, strict=False))
    return World(children=children, pods=pods, probes=probes, pages=answered, held=held)


class Deployment:
    """One LLMDeployment through a series of looks, with what each leaves for the next."""

    def __init__(self, **autoscaling: Any) -> None:
        self.spec: dict[str, Any] = {"autoscaling": {"maxReplicas": 8, **autoscaling}}
        self.status: dict[str, Any] = {}
        self.memory: Memory | None = None
        self.now = NOW

    def look(self, seen: World, seconds: float = 5) -> Scaled:
        self.now += timedelta(seconds=seconds)
        found = scale(read(stored(**self.spec)), seen, self.status, self.memory, self.now)
        self.memory = found.memory
        self.status = {}
        if found.status is not None:
            self.status["autoscaling"] = found.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if found.active is not None:
            self.status["conditions"] = [
                {"type": found.active.type, "status": found.active.answer, "reason": found.active.reason}
            ]
        return found


def test_without_autoscaling_the_spec_decides() -> None:
    found = scale(read(stored(replicas=3)), world(3, [page()]), {}, None, NOW)
    assert (found.replicas, found.active, found.status, found.memory) == (None, None, None, None)


def test_a_new_deployment_starts_at_the_minimum_and_one_that_may_sleep_starts_once() -> None:
    assert Deployment(minReplicas=2).look(world(None, [])).replicas == 2
    assert Deployment(minReplicas=0).look(world(None, [])).replicas == 1


def test_a_load_that_grows_is_answered_at_once_and_told() -> None:
    deployment = Deployment()
    deployment.look(world(1, [page()]))
    found = deployment.look(world(1, [page(running=4, waiting=10)]))
    assert found.replicas == 3
    assert found.status is not None
    assert (found.status.desired, found.status.decision, found.status.decider) == (3, "Up", "Operator")
    assert found.status.last_scale_time == deployment.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert {signal.name for signal in found.status.signals} >= {"kvCacheUsage", "waitingRequests", "runningRatio"}
    assert found.active is not None
    assert (found.active.answer, found.active.reason) == ("True", "SignalsComplete")


def test_a_restart_forgets_and_so_does_not_shrink_for_a_whole_window() -> None:
    deployment = Deployment()
    for _ in range(70):
        deployment.look(world(3, [page()] * 3))
    deployment.memory = None
    for _ in range(WINDOW // 5 - 1):
        assert deployment.look(world(3, [page()] * 3)).replicas == 3
    assert min(deployment.look(world(3, [page()] * 3)).replicas or 0 for _ in range(5)) == 1


def test_a_status_of_another_version_begins_anew_from_what_stands() -> None:
    deployment = Deployment(scaleDown={"stabilizationSeconds": 0})
    deployment.look(world(3, [page(running=16)] * 3))
    deployment.status["autoscaling"]["newerField"] = 1
    found = deployment.look(world(3, [page(running=14)] * 3))
    assert found.replicas == 3
    assert found.status is not None


def test_a_gap_in_the_looks_is_as_good_as_a_restart() -> None:
    deployment = Deployment()
    for _ in range(50):
        deployment.look(world(3, [page()] * 3))
    assert deployment.look(world(3, [page()] * 3), seconds=600).replicas == 3
    assert deployment.look(world(3, [page()] * 3)).replicas == 3


def test_an_unchanged_load_does_not_change_the_status() -> None:
    deployment = Deployment()
    deployment.look(world(1, [page()]))
    deployment.look(world(1, [page(waiting=6)]))
    said = deployment.status
    for number in range(50):
        deployment.look(world(3, [page(running=number % 7, waiting=number % 2, usage=number % 3 / 10)] * 3))
        assert deployment.status == said


@pytest.mark.parametrize(
    "pages", [[page(), None], [page(), ""], [page(), page(usage=float("nan"))]], ids=["none", "empty", "nan"]
)
def test_missing_signals_hold_and_say_so_once(pages: list[str | None]) -> None:
    deployment = Deployment(scaleDown={"stabilizationSeconds": 0})
    deployment.look(world(2, [page(running=14), page(running=14)]))
    found = deployment.look(world(2, pages))
    assert found.replicas == 2
    assert found.active is not None
    assert found.active.answer == "False"
    assert "chat-1" in found.active.message
    said = deployment.status
    deployment.look(world(2, pages))
    assert deployment.status == said
    assert deployment.look(world(2, [page()] * 2)).replicas == 1


def test_prometheus_that_does_not_answer_holds_in_its_own_words() -> None:
    deployment = Deployment(prometheus=PROMETHEUS, scaleDown={"stabilizationSeconds": 0})
    answers = dict.fromkeys(signal_queries("team", "chat"), PrometheusError("Prometheus is not reachable"))
    found = deployment.look(replace(world(3, [page()] * 3), pages={}, answers=answers))
    assert found.replicas == 3
    assert found.active is not None
    assert (found.active.answer, "is not reachable" in found.active.message) == ("False", True)


def test_recommend_says_what_it_would_do_and_does_not() -> None:
    deployment = Deployment(mode="Recommend")
    deployment.look(world(1, [page()]))
    found = deployment.look(world(1, [page(waiting=6)]))
    assert found.replicas == 1
    assert found.status is not None
    assert (found.status.desired, found.status.decision, found.status.last_scale_time) == (3, "Up", None)
    assert found.active is not None
    assert (found.active.answer, found.active.reason) == ("False", "RecommendMode")
    said = deployment.status
    for number in range(50):
        deployment.look(world(1, [page(waiting=6, usage=number % 5 / 10)]))
        assert deployment.status == said
    deployment.spec["autoscaling"]["mode"] = "Apply"
    assert deployment.look(world(1, [page(waiting=6)])).replicas == 3


def test_suspended_it_decides_nothing_and_starts_anew_after() -> None:
    deployment = Deployment(minReplicas=2)
    deployment.look(world(5, [page(running=16)] * 5))
    deployment.spec["suspend"] = True
    found = deployment.look(world(5, []))
    assert (found.replicas, found.memory) == (None, None)
    assert found.active is not None
    assert found.active.reason == "Suspended"
    del deployment.spec["suspend"]
    assert deployment.look(world(0, [])).replicas == 2


def test_asleep_it_stays_asleep_over_a_restart_and_wakes_for_a_request() -> None:
    deployment = Deployment(minReplicas=0, scaleDown={"stabilizationSeconds": 10})
    for _ in range(5):
        found = deployment.look(world(1, [page()]))
    assert (found.replicas, found.asleep) == (0, True)
    assert found.again(Settings()) == Settings().look_again_seconds
    deployment.memory = None
    assert deployment.look(world(0, [])).replicas == 0
    found = deployment.look(world(0, [], held=1))
    assert (found.replicas, found.asleep) == (1, False)
    assert found.again(Settings()) == Settings().scale_seconds


def test_a_loading_replica_is_never_put_to_sleep() -> None:
    deployment = Deployment(minReplicas=0, scaleDown={"stabilizationSeconds": 0})
    for _ in range(100):
        assert deployment.look(world(1, [], loading=1)).replicas == 1


def test_a_number_fixed_before_is_where_ours_begins() -> None:
    deployment = Deployment()
    for _ in range(10):
        assert deployment.look(world(5, [page()] * 5)).replicas == 5


def test_ours_over_to_keda_and_back_never_passes_through_one() -> None:
    deployment = Deployment(scaleDown={"stabilizationSeconds": 60}, prometheus=PROMETHEUS)
    deployment.look(world(5, [page(running=14, usage=0.7)] * 5))
    deployment.spec["autoscaling"]["engine"] = "KEDA"
    assert deployment.look(world(5, [page()] * 5)).replicas == 5
    deployment.spec["replicas"] = 1  # what somebody scales it to so that KEDA can begin
    for _ in range(10):
        found = deployment.look(world(5, [page()] * 5))
        assert found.replicas == 5
        assert found.active is not None
        assert found.active.reason == "HandingOver"
        assert found.again(Settings()) is not None
    deployment.spec["replicas"] = 6
    assert deployment.look(world(5, [page()] * 5)).replicas == 6
    deployment.spec["replicas"] = 2
    assert deployment.look(world(6, [page()] * 6), seconds=60).replicas == 2
    del deployment.spec["replicas"]
    deployment.spec["autoscaling"]["engine"] = "Operator"
    assert deployment.look(world(4, [page()] * 4)).replicas == 4


@pytest.mark.parametrize("minimum", [0, 1])
def test_keda_waits_for_a_number_and_nothing_sleeps_meanwhile(minimum: int) -> None:
    """KEDA reads /scale, which is an error without a number, and then looks ever more rarely: it is asked once there is one."""
    deployment = Deployment(engine="KEDA", prometheus=PROMETHEUS, minReplicas=minimum)
    for _ in range(3):
        found = deployment.look(world(3, [page()] * 3), seconds=WINDOW)
        assert found.replicas == 3
        assert found.active is not None
        assert (found.active.answer, found.active.reason) == ("False", "NoScaleWritten")
        assert "kubectl scale llmd chat --replicas=3, once" in found.active.message
        assert not is_asked(found, deployment)
    deployment.spec["replicas"] = 3
    assert is_asked(deployment.look(world(3, [page()] * 3)), deployment)


def is_asked(found: Scaled, deployment: Deployment) -> bool:
    accepted = found.accepted(read(stored(**deployment.spec)))
    return [made.kind for made in scaler(accepted.owner.key, accepted.spec)] == ["ScaledObject"]


def test_an_outside_scaler_is_kept_to_the_bounds_and_told_what_to_do_when_it_says_nothing() -> None:
    deployment = Deployment(engine="External", minReplicas=2, maxReplicas=4, scaleDown={"stabilizationSeconds": 0})
    found = deployment.look(world(3, [page()] * 3))
    assert found.replicas == 3
    assert found.active is not None
    assert (found.active.answer, found.active.reason) == ("False", "NoScaleWritten")
    assert "kubectl scale llmd chat" in found.active.message
    for word, replicas in ((9, 4), (1, 2), (3, 3)):
        deployment.spec["replicas"] = word
        found = deployment.look(world(3, [page()] * 3))
        assert found.replicas == replicas
        assert found.active is not None
        assert (found.active.answer, found.active.reason) == ("True", "OutsideScaler")
