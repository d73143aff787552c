"""The gateway of a namespace over a cluster in memory: when it is there, whom it serves, and in which order it comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator import gateway_members
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.labels import GATEWAY_NAME
from pagemill_operator.render_namespace_gateway import RIGHTS
from pagemill_operator.settings import Settings
from tests.operator.gateway_cluster import LEAST, Namespace
from tests.operator.pod_statuses import SERVING, running, waiting

ALL = {"Deployment", "PodDisruptionBudget", *RIGHTS}
CHAT = Key("team", "chat")
SLEEPING = {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}


def deletions(namespace: Namespace) -> list[str]:
    return [write for write in namespace.writes if write.startswith("delete")]


async def test_nobody_who_needs_none_gets_one() -> None:
    namespace = await Namespace(chat={}, awake={"autoscaling": {"maxReplicas": 2}}).serve()
    assert namespace.of_gateway() == set()
    assert namespace.route() is None
    assert namespace.led_to() is None


@pytest.mark.parametrize("spec", [LEAST, {"routing": "prefix"}, SLEEPING])
async def test_the_first_who_needs_it_brings_it_and_an_unchanged_world_is_not_written(spec: dict[str, Any]) -> None:
    namespace = await Namespace(chat=spec).serve()
    assert namespace.of_gateway() == ALL
    route = namespace.route()
    assert route is not None
    assert route.routing == spec.get("routing", "service")
    assert namespace.led_to() == route.port == namespace.ports["chat"]
    await namespace.look(passes=50, seconds=100)
    assert namespace.writes == []
    assert set(namespace.again.values()) <= {None, Settings().scale_seconds}  # it looks at the load where it decides


async def test_the_service_turns_only_when_every_gateway_listens_for_it() -> None:
    namespace = Namespace(chat=LEAST)
    await namespace.look(passes=2)
    assert namespace.route() is not None
    assert namespace.led_to() is None, "there is no pod of it yet"
    assert namespace.again["chat"] is None or namespace.again["chat"] > 2, "its pods have events"
    namespace.listen(4711)
    await namespace.look()
    assert namespace.led_to() is None, "none listens for it"
    assert namespace.again["chat"] == 2, "that it does is no event"
    namespace.listen(pods=1)
    await namespace.look()
    assert namespace.led_to() is None, "one of two does"
    namespace.listen()
    await namespace.look()
    assert namespace.led_to() == namespace.ports["chat"]


async def test_a_second_one_joins_and_the_last_one_takes_it_along() -> None:
    namespace = await Namespace(chat=LEAST, other={}).serve()
    namespace.edit(Key("team", "other"), routing="prefix")
    template = namespace.child("Deployment", GATEWAY_NAME)["spec"]["template"]
    await namespace.look(passes=2)
    assert namespace.child("Deployment", GATEWAY_NAME)["spec"]["template"] == template, "nothing that runs is restarted"
    assert set(namespace.ports) == {"chat", "other"}
    assert len(set(namespace.ports.values())) == 2
    assert namespace.led_to("other") is None
    namespace.listen()
    await namespace.look()
    assert namespace.led_to("other") == namespace.ports["other"]
    owners = namespace.child("Deployment", GATEWAY_NAME)["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["chat", "other"]
    assert not any(owner.get("controller") or owner.get("blockOwnerDeletion") for owner in owners)
    namespace.remove("chat")
    await namespace.look(passes=2)
    assert namespace.of_gateway() == ALL
    assert set(namespace.ports) == {"other"}
    namespace.remove("other")
    assert namespace.of_gateway() == set(), "also without an operator"


async def test_on_the_way_out_first_the_service_turns_then_the_route_goes_then_the_gateway() -> None:
    namespace = await Namespace(chat={**LEAST, "rollout": {"lameDuckSeconds": 8}}).serve()
    port = namespace.ports["chat"]
    namespace.edit(CHAT, routing=None)
    await namespace.look()
    assert namespace.led_to() is None
    assert deletions(namespace) == []
    await namespace.look(passes=3, seconds=1)
    assert namespace.route() is not None
    assert namespace.again["chat"] == 8.0 or namespace.again["chat"] == 7.0
    assert namespace.ports == {"chat": port}
    assert deletions(namespace) == []
    await namespace.look(seconds=9)
    assert namespace.route() is None
    await namespace.look()
    assert namespace.gateway is None
    assert deletions(namespace)[0] == "delete Service chat-replicas"
    assert namespace.of_gateway() == set(RIGHTS), "its pods still finish what they run, and look for replicas"
    for number in range(2):
        del namespace.objects["Pod", f"{GATEWAY_NAME}-{number}"]
    await namespace.look()
    assert namespace.of_gateway() == set()
    await namespace.look(passes=3, seconds=100)
    namespace.writes.clear()
    await namespace.look(passes=20, seconds=100)
    assert namespace.writes == []


async def test_whoever_turns_back_while_leaving_stays_where_he_was() -> None:
    namespace = await Namespace(chat=LEAST).serve()
    port = namespace.ports["chat"]
    namespace.edit(CHAT, routing=None)
    await namespace.look(passes=2)
    assert "pagemill.dev/route-ends" in namespace.child("Service", "chat-replicas")["metadata"]["annotations"]
    namespace.edit(CHAT, routing="prefix")
    await namespace.look(passes=2, seconds=30)
    assert namespace.led_to() == port
    assert "pagemill.dev/route-ends" not in namespace.child("Service", "chat-replicas")["metadata"]["annotations"]
    assert deletions(namespace) == []


async def test_a_spec_that_can_not_be_read_leaves_what_runs_as_it_is() -> None:
    namespace = await Namespace(chat={**LEAST, "apiKeysSecretRef": {"name": "clients"}}, other=LEAST).serve()
    before = dict(namespace.objects)
    namespace.edit(CHAT, replicas="many")
    await namespace.look(passes=3, seconds=100)
    assert {who: found for who, found in namespace.objects.items() if found != before[who]} == {}


async def test_a_gateway_that_does_not_answer_just_now_is_not_left() -> None:
    namespace = await Namespace(chat=LEAST).serve()
    for number in range(2):
        del namespace.answers[f"{GATEWAY_NAME}-{number}"]
    await namespace.look(passes=3)
    assert namespace.writes == []


async def test_where_no_gateway_is_left_the_service_leads_to_the_replicas_and_comes_back() -> None:
    namespace = await Namespace(chat=LEAST).serve()
    port = namespace.ports["chat"]
    namespace.listen(ready=False, status=503)
    await namespace.look()
    assert namespace.led_to() is None
    assert namespace.route() is not None
    assert namespace.condition(CHAT, "Ready")["status"] == "True"
    namespace.listen()
    await namespace.look()
    assert namespace.led_to() == port


async def test_a_gateway_that_can_not_start_is_told_of_and_the_replicas_serve_without_it() -> None:
    namespace = Namespace(chat=LEAST)
    await namespace.look(passes=2)
    namespace.observe_deployment()
    namespace.put_pod("chat-0", running(True), SERVING)
    namespace.put_pod(f"{GATEWAY_NAME}-0", waiting("ImagePullBackOff", "no such image"))
    await namespace.look()
    degraded = namespace.condition(CHAT, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "GatewayNotReady")
    assert "no such image" in degraded["message"]
    assert namespace.condition(CHAT, "Ready")["status"] == "True"
    assert namespace.led_to() is None


async def test_a_quota_that_lets_in_no_gateway_is_quoted() -> None:
    namespace = Namespace(chat=LEAST)
    await namespace.look(passes=2)
    message = 'pods "pagemill-gateway-1" is forbidden: exceeded quota: pods'
    namespace.observe_deployment({"type": "ReplicaFailure", "status": "True", "message": message}, name=GATEWAY_NAME)
    await namespace.look()
    assert "exceeded quota" in namespace.condition(CHAT, "Degraded")["message"]


async def test_one_that_sleeps_does_not_call_itself_ready_when_nobody_could_wake_it() -> None:
    namespace = Namespace(chat={**LEAST, "replicas": 0})
    await namespace.look(passes=2)
    namespace.put_pod(f"{GATEWAY_NAME}-0", waiting("ImagePullBackOff", "no such image"))
    await namespace.look()
    assert namespace.condition(CHAT, "Ready")["reason"] == "GatewayNotReady"


async def test_a_lost_deployment_of_it_comes_back_on_the_same_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = await Namespace(chat=LEAST).serve()
    monkeypatch.setattr(gateway_members, "FIRST_PORT", 25000)  # a later operator would choose another
    del namespace.objects["Deployment", GATEWAY_NAME]
    port = namespace.led_to()
    await namespace.look(passes=2)
    assert namespace.led_to() == port


async def test_what_is_refused_is_tried_again_and_holds_up_nothing_else() -> None:
    namespace = Namespace(chat=LEAST)
    namespace.refuse["Role"] = ClusterError("is attempting to grant RBAC permissions not currently held", refused=True)
    await namespace.look(passes=2)
    assert namespace.again[GATEWAY_NAME] == 60
    assert namespace.of_gateway() == ALL - {"Role"}
    degraded = namespace.condition(CHAT, "Degraded")
    assert degraded["reason"] == "GatewayNotReady"
    assert "Role pagemill-gateway: is attempting to grant RBAC permissions" in degraded["message"]
    namespace.writes.clear()
    await namespace.look(passes=5, seconds=100)
    assert namespace.writes == []
    namespace.refuse.clear()
    await namespace.look(passes=2)
    assert namespace.of_gateway() == ALL
    assert namespace.again[GATEWAY_NAME] is None
    assert namespace.condition(CHAT, "Degraded")["status"] == "False"


async def test_a_suspended_one_needs_none() -> None:
    namespace = await Namespace(chat=LEAST).serve()
    namespace.edit(CHAT, suspend=True)
    await namespace.look(passes=2)
    await namespace.look(passes=2, seconds=30)
    assert namespace.gateway is None


async def test_one_on_its_way_out_owns_nothing_anew() -> None:
    namespace = await Namespace(chat=LEAST, other=LEAST).serve()
    leaving = namespace.manifests[CHAT]
    namespace.manifests[CHAT] = {
        **leaving,
        "metadata": {**leaving["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    await namespace.look()
    owners = namespace.child("Deployment", GATEWAY_NAME)["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["other"]
