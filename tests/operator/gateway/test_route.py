"""Routes: what the operator writes is what the gateway reads, and what is wrong is said, field by field."""

from __future__ import annotations

import json

import pytest

from pagemill_operator.gateway import route
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT, InvalidRoute, Route

WHOLE = Route(
    deployment="chat",
    port=20001,
    routing="prefix",
    wake_timeout_seconds=7,
    sleeps=True,
    models=("chat", "an alias"),
    keys=True,
    lame_duck_seconds=3,
    drain_timeout_seconds=30,
    block_size=32,
)


@pytest.mark.parametrize("given", [WHOLE, Route("chat", 1), Route("a.b-c", 65535, "service")])
def test_a_route_is_read_as_it_was_written(given: Route) -> None:
    assert route.of_json(given.to_json()) == given


def test_the_fields_are_named_as_the_contract_has_them() -> None:
    assert json.loads(WHOLE.to_json()) == {
        "deployment": "chat",
        "port": 20001,
        "routing": "prefix",
        "wakeTimeoutSeconds": 7,
        "sleeps": True,
        "models": ["chat", "an alias"],
        "keys": True,
        "lameDuckSeconds": 3,
        "drainTimeoutSeconds": 30,
        "blockSize": 32,
    }


def test_what_a_newer_operator_says_beside_it_is_ignored() -> None:
    assert route.of_json('{"deployment": "chat", "port": 1, "colour": "blue"}') == Route("chat", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"port": 1}', "deployment is missing"),
        ('{"deployment": "chat"}', "port is missing"),
        ('{"deployment": "../chat", "port": 1}', "deployment"),
        ('{"deployment": 3, "port": 1}', "deployment"),
        ('{"deployment": "chat", "port": 0}', "port 0"),
        ('{"deployment": "chat", "port": 65536}', "port 65536"),
        (f'{{"deployment": "chat", "port": {GATEWAY_ADMIN_PORT}}}', "port"),
        ('{"deployment": "chat", "port": true}', "port"),
        ('{"deployment": "chat", "port": 1, "routing": "random"}', "routing"),
        ('{"deployment": "chat", "port": 1, "wakeTimeoutSeconds": -1}', "wakeTimeoutSeconds"),
        ('{"deployment": "chat", "port": 1, "wakeTimeoutSeconds": 0}', "wakeTimeoutSeconds"),
        ('{"deployment": "chat", "port": 1, "blockSize": 1.5}', "blockSize"),
        ('{"deployment": "chat", "port": 1, "models": "chat"}', "models"),
        ('{"deployment": "chat", "port": 1, "keys": "yes"}', "keys"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidRoute, match=message):
        route.of_json(text)
