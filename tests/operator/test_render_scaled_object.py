"""KEDA's objects: who has them, what they ask Prometheus for, and that no want of data takes a replica away."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.errors import InvalidManifest
from pagemill_operator.queries import activation_query, asleep_query, keda_queries, silent_query
from pagemill_operator.render import render
from pagemill_operator.render_scaled_object import PAUSED_ANNOTATION
from pagemill_operator.resource import read
from pagemill_operator.spec_scaling import Targets
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored

KEDA = {"maxReplicas": 4, "engine": "KEDA", "prometheus": {"url": "http://prometheus:9090/base/"}}
TOKEN = {"url": "http://prometheus", "bearerTokenSecretRef": {"name": "reader", "key": "bearer"}}
EVERY_TARGET = {
    "kvCacheUsage": 0.5,
    "waitingRequests": 3,
    "runningRatio": 0.7,
    "ttftSeconds": 2.5,
    "preemptionsPerSecond": 0.25,
}


def children(spec: dict[str, Any] | None = None, **scaling: Any) -> dict[str, Any]:
    made = render(read(stored(**(spec or {}), autoscaling={**KEDA, **scaling})), SETTINGS)
    return {child["kind"]: child for child in made}


def scaled_object(**scaling: Any) -> Any:
    return children(**scaling)["ScaledObject"]["spec"]


def triggers(**scaling: Any) -> dict[str, Any]:
    return {trigger["name"]: trigger for trigger in scaled_object(**scaling)["triggers"]}


@pytest.mark.parametrize("engine", ["Operator", "External"])
def test_only_keda_is_asked(engine: str) -> None:
    assert not {"ScaledObject", "TriggerAuthentication"} & set(children(engine=engine))


def test_it_scales_the_llmdeployment_and_never_its_child() -> None:
    """The operator drains before it shrinks the Deployment."""
    made = children(minReplicas=2)["ScaledObject"]
    assert made["spec"]["scaleTargetRef"] == {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "name": "chat",
    }
    assert (made["spec"]["minReplicaCount"], made["spec"]["maxReplicaCount"]) == (2, 4)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("chat", "team")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-of-chat"


def test_each_signal_with_a_target_is_a_trigger_of_one_series() -> None:
    asked = triggers(targets=EVERY_TARGET)
    queries = keda_queries("team", "chat", Targets.model_validate(EVERY_TARGET))
    assert set(queries) == set(EVERY_TARGET)
    for name, query in queries.items():
        assert asked[name]["type"] == "prometheus"
        assert asked[name]["metadata"] == {
            "serverAddress": "http://prometheus:9090/base",
            "query": query,
            "threshold": f"{EVERY_TARGET[name]}",
            "activationThreshold": "0",
            "ignoreNullValues": "false",
        }
    assert set(asked) == {*EVERY_TARGET, "silentReplicas"}


def test_sums_are_spread_over_the_replicas_and_seconds_are_not() -> None:
    kinds = {name: trigger["metricType"] for name, trigger in triggers(targets=EVERY_TARGET).items()}
    assert kinds.pop("ttftSeconds") == "Value"
    assert set(kinds.values()) == {"AverageValue"}


def test_a_signal_without_a_target_is_not_asked() -> None:
    assert set(triggers()) == {"kvCacheUsage", "waitingRequests", "runningRatio", "silentReplicas"}


@pytest.mark.parametrize(("target", "threshold"), [(2.0, "2"), (0.8, "0.8"), (1e-9, "0.001"), (1e9, "1000000000")])
def test_a_threshold_is_a_number_that_an_hpa_can_count_in(target: float, threshold: str) -> None:
    asked = triggers(targets={"waitingRequests": target})
    assert asked["waitingRequests"]["metadata"]["threshold"] == threshold


def test_a_replica_that_cant_be_scraped_holds_all_of_them() -> None:
    """The sums are less without it. While one trigger errs, an HPA takes nothing away and adds what the others ask for."""
    silent = triggers()["silentReplicas"]
    assert silent["metadata"]["query"] == silent_query("team", "chat")
    assert (silent["metadata"]["threshold"], silent["metricType"]) == ("1", "AverageValue")


@pytest.mark.parametrize(("minimum", "least"), [(0, 1), (1, 1), (3, 3)])
def test_without_answers_there_are_never_fewer(minimum: int, least: int) -> None:
    """A fallback of 0 would send it to sleep at the first look that fails."""
    assert scaled_object(minReplicas=minimum)["fallback"] == {
        "failureThreshold": 3,
        "replicas": least,
        "behavior": "currentReplicasIfHigher",
    }


def test_it_wakes_by_what_waits_at_the_gateway_and_sleeps_without_an_error() -> None:
    asked = triggers(minReplicas=0)
    held = asked.pop("heldRequests")
    assert held["metadata"]["query"] == activation_query("team", "chat")
    assert held["metadata"]["activationThreshold"] == "0"
    queries = keda_queries("team", "chat", Targets()) | {"silentReplicas": silent_query("team", "chat")}
    for name, trigger in asked.items():
        assert trigger["metadata"]["query"] == f"({queries[name]}) or ({asleep_query('team', 'chat')})"
    assert scaled_object(minReplicas=0)["pollingInterval"] < scaled_object(minReplicas=1)["pollingInterval"]


def test_the_window_is_the_hpas_and_for_the_last_step_kedas() -> None:
    made = scaled_object(minReplicas=0, scaleDown={"stabilizationSeconds": 45})
    assert made["cooldownPeriod"] == made["initialCooldownPeriod"] == 45
    behavior = made["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 45
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0, "a scale-up is never held back"


def test_rates_are_a_minutes_and_without_one_all_go_at_once() -> None:
    def policies(**scaling: Any) -> Any:
        behavior = scaled_object(**scaling)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        return [behavior[way]["policies"] for way in ("scaleUp", "scaleDown")]

    at_once = [{"type": "Pods", "value": 4, "periodSeconds": 1}]
    assert policies() == [at_once, at_once]
    assert policies(scaleUp={"podsPerMinute": 2}, scaleDown={"podsPerMinute": 1}) == [
        [{"type": "Pods", "value": 2, "periodSeconds": 60}],
        [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    ]


def test_prometheus_token_goes_by_an_authentication_of_its_own() -> None:
    made = children(prometheus=TOKEN)
    assert made["TriggerAuthentication"]["spec"] == {
        "secretTargetRef": [{"parameter": "bearerToken", "name": "reader", "key": "bearer"}]
    }
    for trigger in made["ScaledObject"]["spec"]["triggers"]:
        assert trigger["authenticationRef"] == {"name": made["TriggerAuthentication"]["metadata"]["name"]}
        assert trigger["metadata"]["authModes"] == "bearer"
    kinds = list(made)
    assert kinds.index("TriggerAuthentication") < kinds.index("ScaledObject")


@pytest.mark.parametrize(("spec", "scaling"), [({}, {"mode": "Recommend"}), ({"suspend": True}, {})])
def test_who_only_recommends_or_is_suspended_is_paused(spec: dict[str, Any], scaling: dict[str, Any]) -> None:
    made = children(spec, **scaling)["ScaledObject"]
    assert made["metadata"]["annotations"] == {PAUSED_ANNOTATION: "true"}
    assert PAUSED_ANNOTATION not in children()["ScaledObject"]["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({"prometheus": None}, "spec.autoscaling: prometheus.url is needed with engine KEDA"),
        ({"scaleDown": {"stabilizationSeconds": 3601}}, "scaleDown.stabilizationSeconds is at most 3600"),
    ],
)
def test_what_keda_cant_do_is_refused(scaling: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidManifest, match="autoscaling") as refusal:
        children(**scaling)
    assert says in str(refusal.value)
