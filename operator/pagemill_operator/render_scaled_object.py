"""What KEDA is asked for where `autoscaling.engine` is KEDA: a ScaledObject on our `/scale`, and how to show Prometheus a token.

Pure. KEDA makes an HPA of it and writes `spec.replicas`; who goes and when is the operator's all the same, so that a scale-down
drains. One trigger a signal, each query one series: their largest ask wins, as the operator's own. Called by `render`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagemill_operator.cluster.interface import Key
from pagemill_operator.labels import API_VERSION, KIND
from pagemill_operator.queries import COMPARED, activation_query, asleep_query, keda_queries, silent_query
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.spec_scaling import Autoscaling, Prometheus, ScaleDown, ScaleUp

KEDA_API = "keda.sh/v1alpha1"
PAUSED_ANNOTATION = "autoscaling.keda.sh/paused"
_POLL = 15  # seconds between two looks of KEDA's own; its HPA looks as often
_POLL_ASLEEP = 5  # where a request may be waiting for the answer
_FAILURES = 3  # looks in a row that may fail before KEDA says so in its Fallback condition
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class ScalerChild:
    """One of KEDA's objects; it has the deployment's name."""

    kind: str
    spec: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)


def scaler(key: Key, spec: LLMDeploymentSpec) -> Iterator[ScalerChild]:
    """Nothing where somebody else decides. The authentication first, so that no trigger names what is not there yet."""
    scaling = spec.autoscaling
    if scaling is None or scaling.engine != "KEDA":
        return
    prometheus = scaling.prometheus
    assert prometheus is not None, "the types ask for it"
    if (secret := prometheus.bearer_token_secret_ref) is not None:
        token = {"parameter": "bearerToken", "name": secret.name, "key": secret.key}
        yield ScalerChild("TriggerAuthentication", {"secretTargetRef": [token]})
    idle = scaling.mode == "Recommend" or spec.suspend
    yield ScalerChild(
        "ScaledObject", _scaled_object(key, scaling, prometheus), {PAUSED_ANNOTATION: "true"} if idle else {}
    )


def _scaled_object(key: Key, scaling: Autoscaling, prometheus: Prometheus) -> dict[str, Any]:
    window = scaling.scale_down.stabilization_seconds
    return {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": key.name},
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "pollingInterval": _POLL if scaling.min_replicas else _POLL_ASLEEP,
        # From one to none is KEDA's own step: the window holds there too, also for an object that has just been made.
        "cooldownPeriod": window,
        "initialCooldownPeriod": window,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}},
        "triggers": [_trigger(key, prometheus, *one) for one in _signals(key, scaling)],
        # Never fewer for want of data. Not 0: KEDA would go to sleep at the first failed looks.
        "fallback": {
            "failureThreshold": _FAILURES,
            "replicas": max(1, scaling.min_replicas),
            "behavior": "currentReplicasIfHigher",
        },
    }


def _signals(key: Key, scaling: Autoscaling) -> Iterator[tuple[str, str, float]]:
    """(name, query, target): each signal that has a target, and what holds or wakes whatever they say."""
    who, targets = (key.namespace, key.name), scaling.targets.model_dump(by_alias=True)
    asked = [(name, query, targets[name]) for name, query in keda_queries(*who, scaling.targets).items()]
    asked.append(("silentReplicas", silent_query(*who), 1))
    if scaling.min_replicas > 0:
        yield from asked
        return
    # At none nobody is scraped, and no answer is an error. Where the gateway itself knows of none it means 0.
    asleep = asleep_query(*who)
    yield from ((name, f"({query}) or ({asleep})", target) for name, query, target in asked)
    yield "heldRequests", activation_query(*who), scaling.targets.waiting_requests


def _trigger(key: Key, prometheus: Prometheus, name: str, query: str, target: float) -> dict[str, Any]:
    metadata = {
        "serverAddress": prometheus.url.rstrip("/"),
        "query": query,
        "threshold": _number(target),
        "activationThreshold": "0",
        "ignoreNullValues": "false",  # KEDA's own default takes no answer for no load
    }
    trigger: dict[str, Any] = {"type": "prometheus", "name": name, "metadata": metadata}
    trigger["metricType"] = "Value" if name in COMPARED else "AverageValue"
    if prometheus.bearer_token_secret_ref is not None:
        metadata["authModes"] = "bearer"
        trigger["authenticationRef"] = {"name": key.name}
    return trigger


def _number(value: float) -> str:
    """An HPA counts in thousandths, and a target of 0 can't be."""
    return f"{max(value, 0.001):.3f}".rstrip("0").rstrip(".")


def _behavior(scaling: Autoscaling) -> dict[str, Any]:
    """The HPA's own defaults would add four, or as many as there are, each 15 s."""
    up, down = scaling.scale_up, scaling.scale_down
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [_policy(up, scaling.max_replicas)]},
        "scaleDown": {
            "stabilizationWindowSeconds": down.stabilization_seconds,
            "policies": [_policy(down, scaling.max_replicas)],
        },
    }


def _policy(rate: ScaleUp | ScaleDown, most: int) -> dict[str, Any]:
    """All at once where no rate is set."""
    count = most if rate.pods_per_minute is None else rate.pods_per_minute
    return {"type": "Pods", "value": count, "periodSeconds": _MINUTE if rate.pods_per_minute else 1}
