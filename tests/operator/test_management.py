"""The token of a deployment's management port: derived, kept in a Secret that is written and never read, given to pods alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagemill.endpoints import MANAGEMENT_TOKEN_ENV
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.management_token import management_token
from pagemill_operator.reconcile import reconcile
from pagemill_operator.render import render
from pagemill_operator.resource import read
from tests.operator.golden_cases import MANAGED, SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, running, waiting

KEY = Key("team", "chat")
OPERATOR_KEY = b"x" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def run(cluster: MemoryCluster, passes: int = 1) -> list[str]:
    """The writes."""
    cluster.writes.clear()
    for _ in range(passes):
        await reconcile(cluster, KEY, NOW, MANAGED)
    return [write for write in cluster.writes if "Secret" in write or "Deployment" in write]


def test_every_deployment_has_a_token_of_its_own() -> None:
    keys = [Key("team", "chat"), Key("team", "chat2"), Key("team2", "chat"), Key("teamch", "at")]
    tokens = {management_token(OPERATOR_KEY, key) for key in keys} | {management_token(b"y" * 32, keys[0])}
    assert len(tokens) == len(keys) + 1
    assert management_token(OPERATOR_KEY, KEY) == management_token(OPERATOR_KEY, KEY)


def test_the_pod_gets_it_by_reference_and_listens() -> None:
    secret, deployment = (
        found for found in render(read(stored()), MANAGED) if found["kind"] in ("Secret", "Deployment")
    )
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    (variable,) = [found for found in container["env"] if found["name"] == MANAGEMENT_TOKEN_ENV]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": secret["metadata"]["name"], "key": "token"}
    assert secret["stringData"]["token"] == management_token(MANAGED.management_key, KEY)
    assert secret["stringData"]["token"] not in str(deployment)
    assert "--management-port 8001" in " ".join(container["args"])
    assert {"name": "management", "containerPort": 8001, "protocol": "TCP"} in container["ports"]


def test_no_service_leads_to_it() -> None:
    (service,) = (found for found in render(read(stored()), MANAGED) if found["kind"] == "Service")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_a_users_variable_does_not_take_its_place() -> None:
    env = [{"name": MANAGEMENT_TOKEN_ENV, "value": "known"}]
    deployment = render(read(stored(pod={"env": env})), MANAGED)[-1]
    assert "known" not in str(deployment["spec"]["template"]["spec"]["containers"][0]["env"])


def test_without_a_key_of_the_operators_there_is_no_port() -> None:
    assert "management" not in str(render(read(stored()), SETTINGS))


async def test_the_secret_is_written_once() -> None:
    cluster = MemoryCluster(stored())
    assert await run(cluster) == ["apply Secret chat-management", "apply Deployment chat"]
    cluster.objects.pop(("Secret", "chat-management"))  # it can't be read back
    assert await run(cluster, passes=3) == []


@pytest.mark.parametrize(
    "words", ['secret "chat-management" not found', "couldn't find key token in Secret team/chat-management"]
)
async def test_pods_that_miss_it_get_it_again(words: str) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    cluster.put_pod("chat-0", waiting("CreateContainerConfigError", words))
    assert await run(cluster) == ["apply Secret chat-management"]
    cluster.put_pod("chat-0", running(True), SERVING)
    assert await run(cluster) == []


@pytest.mark.parametrize(
    "words",
    [
        'secret "hub" not found',
        "couldn't find key token in Secret team/my-chat-management",
        'configmap "chat" not found',
    ],
)
async def test_pods_that_miss_another_do_not(words: str) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    cluster.put_pod("chat-0", waiting("CreateContainerConfigError", words))
    cluster.writes.clear()
    assert await run(cluster, passes=3) == []


@pytest.mark.parametrize("refused", [True, False])
async def test_no_pod_is_made_that_would_wait_for_it(refused: bool) -> None:
    cluster = MemoryCluster(stored())
    cluster.refuse["Secret"] = ClusterError("forbidden", refused=refused)
    if refused:
        assert await run(cluster) == []
    else:
        with pytest.raises(ClusterError):
            await run(cluster)
    assert ("Deployment", "chat") not in cluster.objects
    del cluster.refuse["Secret"]
    assert await run(cluster) == ["apply Secret chat-management", "apply Deployment chat"]


async def test_another_key_writes_it_anew_and_rolls_nothing() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    before: Any = cluster.child("Deployment")["spec"]
    cluster.writes.clear()
    await reconcile(cluster, KEY, NOW, replace(MANAGED, management_key=OPERATOR_KEY))
    assert "apply Secret chat-management" in cluster.writes
    assert cluster.child("Deployment")["spec"] == before
