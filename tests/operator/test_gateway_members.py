"""Who is behind a namespace's gateway, what each brings along, and that ports stay where they are."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.gateway_members import FIRST_PORT, PORTS, Member, allot, held_ports, members
from pagemill_operator.labels import GATEWAY_PORTS_ANNOTATION
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.way import needs_gateway
from tests.operator.manifests import stored


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({}, False),
        ({"routing": "service"}, False),
        ({"routing": "leastLoad"}, True),
        ({"routing": "prefix", "replicas": 1}, True),
        ({"routing": "prefix", "task": "embed"}, True),
        ({"routing": "prefix", "suspend": True}, False),
        ({"autoscaling": {"maxReplicas": 3}}, False),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3}}, True),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3, "engine": "External"}}, True),
    ],
)
def test_who_needs_one(spec: dict[str, Any], needs: bool) -> None:
    assert needs_gateway(LLMDeploymentSpec.model_validate({"model": "org/name", **spec})) is needs


def test_ports_are_the_same_whoever_asks_and_each_has_its_own() -> None:
    names = [f"llm-{number}" for number in range(300)]
    ports = allot(names, {})
    assert allot(list(reversed(names)), {}) == ports
    assert len(set(ports.values())) == 300
    assert all(FIRST_PORT <= port < FIRST_PORT + PORTS for port in ports.values())


def test_who_has_a_port_keeps_it() -> None:
    alone = allot(["b"], {})["b"]
    assert allot(["b"], {"b": 21111}) == {"b": 21111}
    ports = allot(["a", "b", "c"], {"a": alone, "gone": 20001})
    assert ports["a"] == alone
    assert ports["b"] == alone + 1, "the next free one"
    assert allot(["a", "b"], {"a": 25000, "b": 25000})["a"] == 25000, "of two the first; the other moves"
    assert len(set(allot(["a", "b"], {"a": 25000, "b": 25000}).values())) == 2


def test_the_last_port_is_followed_by_the_first() -> None:
    taken = {f"x{port}": port for port in range(FIRST_PORT, FIRST_PORT + PORTS) if port != FIRST_PORT + 3}
    assert allot([*taken, "late"], taken)["late"] == FIRST_PORT + 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"chat": "20001"}', '{"chat": 80}', '{"chat": true}', "null"])
def test_what_a_hand_wrote_there_is_no_port(text: str) -> None:
    assert held_ports({"metadata": {"annotations": {GATEWAY_PORTS_ANNOTATION: text}}}) == {}


def test_a_member_brings_its_keys_its_drain_and_who_watches() -> None:
    spec: dict[str, Any] = {
        "routing": "leastLoad",
        "apiKeysSecretRef": {"name": "clients"},
        "rollout": {"lameDuckSeconds": 3, "drainTimeoutSeconds": 40},
        "imagePullSecrets": [{"name": "pull"}],
        "monitoring": {"podMonitor": True},
        "networkPolicy": {"enabled": True},
    }
    found = members([stored("b", **spec), stored("a"), stored("broken", routing="fastest")], {}, None)
    assert found == (Member("b", "uid-of-b", "clients", 43, ("pull",), True, True),)
