"""What a front makes of a manifest: who is waited for, by which names, and how it is spread."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.local.front_route import front_route
from pagemill_operator.gateway.route import Route


def manifest(**spec: Any) -> dict[str, Any]:
    head = {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "tiny", "namespace": "ns"},
    }
    return {**head, "spec": {"model": "org/name", **spec}}


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        ({"replicas": 0}, 0),
        ({"autoscaling": {"maxReplicas": 3}}, 0),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3}}, 300),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3, "wakeTimeoutSeconds": 7}}, 7),
    ],
)
def test_only_one_that_may_sleep_is_waited_for(spec: dict[str, Any], seconds: int) -> None:
    assert front_route("tiny", 8000, manifest(**spec)).wake_timeout_seconds == seconds


def test_names_and_spread_are_the_spec_s() -> None:
    spec = {"servedModelNames": ["a", "b"], "routing": "prefix", "engine": {"blockSize": 32}}
    route = front_route("tiny", 8000, manifest(**spec))
    assert (route.models, route.routing, route.block_size) == (("a", "b"), "prefix", 32)
    assert front_route("tiny", 8000, manifest()).models == ("org/name",)


@pytest.mark.parametrize("found", [None, manifest(model=3)])
def test_without_a_manifest_that_can_be_read_nobody_waits(found: dict[str, Any] | None) -> None:
    assert front_route("tiny", 8000, found) == Route("tiny", 8000, wake_timeout_seconds=0)
