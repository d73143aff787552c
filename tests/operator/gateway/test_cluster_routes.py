"""What Services and EndpointSlices say, as a cluster writes them."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.gateway.cluster_routes import table_of
from pagemill_operator.gateway.route import ROUTE_ANNOTATION, SERVICE_NAME_LABEL, Route, RouteTable, Target

CHAT = Route("chat", 20001)


def service(text: str | None, name: str = "chat-replicas") -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {} if text is None else {ROUTE_ANNOTATION: text}}}


def found(*endpoints: dict[str, Any], service: str = "chat-replicas", **fields: Any) -> dict[str, Any]:
    metadata = {"name": "chat-replicas-x", "labels": {SERVICE_NAME_LABEL: service}}
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": list(endpoints), **fields}


def endpoint(*addresses: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": list(addresses), "conditions": conditions}


def addresses(*slices: dict[str, Any]) -> set[str]:
    return set(table_of([service(CHAT.to_json())], slices, {})["chat"].replicas)


def test_a_route_and_its_ready_replicas() -> None:
    ready = found(
        endpoint("10.0.0.1", ready=True),
        endpoint("10.0.0.2", ready=False, serving=True, terminating=True),
        endpoint("10.0.0.3"),
        ports=[{"port": 8000, "protocol": "TCP"}],
    )
    table = table_of([service(CHAT.to_json())], [ready, found(endpoint("10.9.9.9"), service="chat")], {})
    assert table == {"chat": Target(CHAT, frozenset({"10.0.0.1:8000", "10.0.0.3:8000"}))}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"10.0.0.1:8000"}),
        ({"ports": None}, {"10.0.0.1:8000"}),
        ({"ports": [{"port": 9, "protocol": "UDP"}, {"port": 8123}]}, {"10.0.0.1:8123"}),
        ({"addressType": "FQDN"}, set()),
        ({"endpoints": None}, set()),
    ],
)
def test_slices_as_they_may_be(fields: dict[str, Any], expected: set[str]) -> None:
    assert addresses(found(endpoint("10.0.0.1"), **fields)) == expected


def test_several_slices_of_one_service_and_both_families() -> None:
    six = found(endpoint("fd00::1"), addressType="IPv6", ports=[{"port": 8000}])
    assert addresses(found(endpoint("10.0.0.1")), found(endpoint("10.0.0.1", "10.0.0.2")), six) == {
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "[fd00::1]:8000",
    }


def test_a_service_without_the_annotation_is_none_of_ours() -> None:
    assert table_of([service(None), {"metadata": {"name": "x"}}], [], {}) == {}


def test_a_broken_annotation_keeps_the_route_that_was_there(caplog: pytest.LogCaptureFixture) -> None:
    before: RouteTable = {"chat": Target(CHAT, frozenset({"10.0.0.1:8000"}))}
    assert table_of([service("{")], [found(endpoint("10.0.0.2"))], before) == {
        "chat": Target(CHAT, frozenset({"10.0.0.2:8000"}))
    }
    assert table_of([service("{")], [], {}) == {}
    assert "chat-replicas" in caplog.text
    assert "it is not JSON" in caplog.text
