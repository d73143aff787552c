"""What stands beside the pods and without which they serve all the same: disruption budget, network policy, monitor, route.

Pure: each function gives (apiVersion, kind, spec), or nothing where the spec does not ask for it. The kinds are those of
`apply.BESIDE`: one that the cluster refuses degrades the deployment and leaves Ready to the pods. Called by `render`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pagemill.endpoints import MANAGEMENT_PORT, METRICS_PATH, SERVING_PORT
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.render_gateway import routing
from pagemill_operator.render_pod import PORT_NAME
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec

Body = tuple[str, str, dict[str, Any]]  # apiVersion, kind, spec

_NAMESPACE_NAME = "kubernetes.io/metadata.name"  # which the API server itself puts on every namespace


def beside(
    name: str, spec: LLMDeploymentSpec, settings: Settings, selector: Mapping[str, str], replicas: int
) -> Iterator[Body]:
    """All of them, in the order in which they are applied. `selector`: the replicas' labels."""
    if replicas > 1:
        yield "policy/v1", "PodDisruptionBudget", _disruption_budget(selector)
    if spec.network_policy.enabled:
        yield "networking.k8s.io/v1", "NetworkPolicy", _network_policy(selector, settings.namespace)
    if spec.monitoring.pod_monitor:
        yield "monitoring.coreos.com/v1", "PodMonitor", _pod_monitor(selector)
    if spec.gateway is not None:
        yield from routing(name, spec.gateway, spec.service.port, selector)


def _disruption_budget(selector: Mapping[str, str]) -> dict[str, Any]:
    """One replica at a time. There is none for a single replica: it would hold up the drain of its node for ever.

    A replica that does not answer anyway may always be evicted, or one that can't start would hold up its node as well.
    """
    return {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(selector)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def _network_policy(selector: Mapping[str, str], operator_namespace: str | None) -> dict[str, Any]:
    """The serving port, with /metrics, for everybody; the management port for the operator's namespace only."""
    ingress: list[dict[str, Any]] = [{"ports": [{"port": SERVING_PORT, "protocol": "TCP"}]}]
    if operator_namespace is not None:
        operator = {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: operator_namespace}}}
        ingress.append({"from": [operator], "ports": [{"port": MANAGEMENT_PORT, "protocol": "TCP"}]})
    return {"podSelector": {"matchLabels": dict(selector)}, "policyTypes": ["Ingress"], "ingress": ingress}


def _pod_monitor(selector: Mapping[str, str]) -> dict[str, Any]:
    """With the label that the chart's dashboards and alerts call a deployment by."""
    meta_label = "__meta_kubernetes_pod_label_" + DEPLOYMENT_LABEL.replace(".", "_").replace("/", "_")
    endpoint = {
        "port": PORT_NAME,
        "path": METRICS_PATH,
        "relabelings": [{"sourceLabels": [meta_label], "targetLabel": "llmdeployment"}],
    }
    return {"selector": {"matchLabels": dict(selector)}, "podMetricsEndpoints": [endpoint]}
