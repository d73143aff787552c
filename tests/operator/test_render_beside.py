"""What stands beside the pods: made when the spec asks for it, gone when it does not, and what each lets through."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagemill.endpoints import MANAGEMENT_PORT, SERVING_PORT
from pagemill_operator import apply
from pagemill_operator.cluster.interface import Key, NoSuchKind
from pagemill_operator.cluster.kinds import BY_KIND
from pagemill_operator.observe import CHILD_KINDS
from pagemill_operator.reconcile import reconcile
from pagemill_operator.render import render, selector
from pagemill_operator.resource import read
from pagemill_operator.settings import Settings
from tests.operator.golden_cases import PICKED, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("team", "chat")
BESIDE = tuple(kind for kind in apply.BESIDE if kind in BY_KIND)  # without what is no object
ALL: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {"enabled": True},
    "monitoring": {"podMonitor": True},
    "gateway": PICKED,
}
TOKEN = {"name": "reader"}
SCALED: dict[str, Any] = {
    **ALL,
    "autoscaling": {
        "maxReplicas": 2,
        "engine": "KEDA",
        "prometheus": {"url": "http://prometheus", "bearerTokenSecretRef": TOKEN},
    },
}


def children(settings: Settings = SETTINGS, **spec: Any) -> dict[str, Any]:
    return {child["kind"]: child for child in render(read(stored(**spec)), settings)}


def test_nothing_stands_beside_a_deployment_that_does_not_ask_for_it() -> None:
    assert not set(children()) & set(BESIDE)


def test_all_of_it_is_known_to_the_stages_that_make_apply_and_delete_it() -> None:
    made = children(**SCALED)
    assert set(made) & set(BESIDE) == set(BESIDE)
    for kind in BESIDE:
        assert kind in CHILD_KINDS
        assert made[kind]["apiVersion"] == BY_KIND[kind].api_version
        assert made[kind]["metadata"]["ownerReferences"][0]["uid"] == "uid-of-chat"


def test_only_several_replicas_have_a_disruption_budget() -> None:
    """karpenter#2985: a budget over one replica would hold up the drain of its node for ever."""
    assert "PodDisruptionBudget" not in children(replicas=1)
    assert "PodDisruptionBudget" not in children(replicas=0)
    assert "PodDisruptionBudget" not in children(replicas=3, suspend=True)
    budget = children(replicas=3)["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == {"matchLabels": selector("chat")}


def test_a_policy_opens_the_serving_port_to_all_and_management_to_the_operator_only() -> None:
    policy = children(replace(SETTINGS, namespace="system"), networkPolicy={"enabled": True})["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == {"matchLabels": selector("chat")}
    assert policy["policyTypes"] == ["Ingress"]
    serving, management = policy["ingress"]
    assert serving == {"ports": [{"port": SERVING_PORT, "protocol": "TCP"}]}
    assert management["ports"] == [{"port": MANAGEMENT_PORT, "protocol": "TCP"}]
    (who,) = management["from"]
    assert who == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}}}


def test_an_operator_outside_of_the_cluster_opens_management_to_nobody() -> None:
    """It comes from no pod: a rule without a source would let everybody in."""
    policy = children(replace(SETTINGS, namespace=None), networkPolicy={"enabled": True})["NetworkPolicy"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": SERVING_PORT, "protocol": "TCP"}]}]


def test_a_monitor_scrapes_a_port_that_the_pod_has_under_the_dashboards_name() -> None:
    made = children(monitoring={"podMonitor": True})
    (endpoint,) = made["PodMonitor"]["spec"]["podMetricsEndpoints"]
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]}[endpoint["port"]] == SERVING_PORT
    assert endpoint["relabelings"][0]["targetLabel"] == "llmdeployment"
    assert endpoint["relabelings"][0]["sourceLabels"] == ["__meta_kubernetes_pod_label_pagemill_dev_deployment"]


def test_a_route_without_a_picker_leads_to_the_service() -> None:
    made = children(gateway={"parentRef": {"name": "edge"}}, service={"port": 80})
    assert "InferencePool" not in made
    (rule,) = made["HTTPRoute"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("Service", made["Service"]["metadata"]["name"])
    assert backend["port"] == made["Service"]["spec"]["ports"][0]["port"] == 80


def test_a_route_with_a_picker_leads_to_a_pool_of_the_replicas() -> None:
    made = children(gateway=PICKED)
    pool, route = made["InferencePool"], made["HTTPRoute"]["spec"]
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": SERVING_PORT}]
    assert pool["spec"]["endpointPickerRef"]["name"] == "picker"
    (backend,) = route["rules"][0]["backendRefs"]
    assert (backend["group"], backend["kind"]) == ("inference.networking.k8s.io", "InferencePool")
    assert backend["name"] == pool["metadata"]["name"]
    assert route["hostnames"] == ["chat.example.com"]


async def test_what_the_spec_no_longer_asks_for_is_deleted() -> None:
    cluster = MemoryCluster(stored(**ALL))
    await reconcile(cluster, KEY, NOW, SETTINGS)
    assert {kind for kind, _ in cluster.objects} >= set(BESIDE) - set(apply.SCALERS)
    cluster.edit(KEY, replicas=1, networkPolicy=None, monitoring=None, gateway=None)
    await reconcile(cluster, KEY, NOW, SETTINGS)
    assert not {kind for kind, _ in cluster.objects} & set(BESIDE)
    assert {"Deployment", "Service"} <= {kind for kind, _ in cluster.objects}


@pytest.mark.parametrize("kind", [kind for kind in BESIDE if kind not in apply.SCALERS])
async def test_a_kind_that_is_missing_holds_up_nothing_and_is_said(kind: str) -> None:
    cluster = MemoryCluster(stored(**ALL))
    cluster.refuse[kind] = NoSuchKind(kind, BY_KIND[kind].api_version)
    await reconcile(cluster, KEY, NOW, SETTINGS)
    assert {found for found, _ in cluster.objects} >= {*BESIDE, "Deployment"} - {kind, *apply.SCALERS}
    degraded = cluster.condition(KEY, "Degraded")
    assert degraded["status"] == "True"
    assert f"the cluster has no {kind}" in degraded["message"]
    assert "install its CRD" in degraded["message"]


def test_a_policy_of_the_users_own_is_mounted_on_the_servers_path() -> None:
    spec = children(
        schedulingPolicy="ours:Shortest",
        scheduling={"policyConfigMap": "policies"},
        pod={"env": [{"name": "PYTHONPATH", "value": "/own"}]},
    )["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "policy"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    assert volume["configMap"] == {"name": "policies"}  # not optional: a missing one is said, by its name
    assert mount["readOnly"] is True
    (path,) = [variable["value"] for variable in container["env"] if variable["name"] == "PYTHONPATH"]
    assert path.split(":") == [mount["mountPath"], "/own"]
