"""The key of a namespace's gateway, beside those of its deployments."""

from __future__ import annotations

from pagemill_operator.cluster.interface import Key
from pagemill_operator.gateway_key import gateway_key, is_gateway, with_gateways
from pagemill_operator.resource import _is_dns_label


def test_no_deployment_can_have_its_name() -> None:
    assert is_gateway(gateway_key("team"))
    assert not is_gateway(Key("team", "gateway"))
    assert not _is_dns_label(gateway_key("team").name)


def test_each_namespace_has_one() -> None:
    keys = (Key("a", "x"), Key("a", "y"), Key("b", "x"), gateway_key("b"))
    assert set(with_gateways(keys)) == {*keys, gateway_key("a")}
    assert len(with_gateways(keys)) == 5
