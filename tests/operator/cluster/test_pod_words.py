"""What is asked of pods over real HTTP: a replica's metrics, a gateway's readiness, and who waits at the gateways."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import Key
from pagemill_operator.cluster.kubernetes import KubernetesCluster
from pagemill_operator.gateway.metrics import WAITING
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT
from pagemill_operator.gateway_key import gateway_key
from pagemill_operator.labels import DEPLOYMENT_LABEL, KIND

CHAT = Key("team", "chat")


class Pods:
    """Each listens on an address of its own, as pods do."""

    def __init__(self, stack: AsyncExitStack, cluster: KubernetesCluster, cache: ObjectCache) -> None:
        self.cluster, self.cache, self._stack = cluster, cache, stack

    async def add(self, key: Key, name: str, port: int, page: str | None, status: int = 200) -> dict[str, Any]:
        """`page`: what every path of it says; None: nobody listens."""
        address = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(2, 254)}"
        if page is not None:
            runner = web.ServerRunner(web.Server(self._saying(page, status)), shutdown_timeout=0.1)
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, address, port).start()
        pod: dict[str, Any] = {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": key.namespace,
                "uid": name,
                "resourceVersion": "1",
                "labels": {DEPLOYMENT_LABEL: key.name},
            },
            "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.cache.put(pod)
        return pod

    @staticmethod
    def _saying(page: str, status: int) -> Callable[[web.BaseRequest], Any]:
        async def say(request: web.BaseRequest) -> web.Response:
            return web.Response(text=page, status=status)

        return say

    async def gateway(self, name: str, waiting: int | None) -> dict[str, Any]:
        page = None if waiting is None else f'{WAITING}{{deployment="chat"}} {waiting}\n'
        return await self.add(gateway_key("team"), name, GATEWAY_ADMIN_PORT, page)


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    async with (
        AsyncExitStack() as stack,
        Api(client.Configuration(host="http://127.0.0.1:1")) as api,
        aiohttp.ClientSession() as session,
    ):
        cache = ObjectCache()
        yield Pods(stack, KubernetesCluster(api, cache, session, ()), cache)


async def test_a_replicas_metrics_are_its_page_or_nothing(pods: Pods) -> None:
    page = "# TYPE a gauge\n" + "".join(f'a{{n="{number}"}} 1\n' for number in range(9000))  # more than a probe reads
    assert await pods.cluster.metrics(await pods.add(CHAT, "chat-0", SERVING_PORT, page)) == page
    assert await pods.cluster.metrics(await pods.add(CHAT, "chat-1", SERVING_PORT, "busy", status=503)) is None
    assert await pods.cluster.metrics(await pods.add(CHAT, "chat-2", SERVING_PORT, None)) is None
    assert await pods.cluster.metrics({"metadata": {"name": "chat-3"}, "status": {}}) is None


async def test_another_port_of_a_pod_can_be_asked(pods: Pods) -> None:
    pod = await pods.add(gateway_key("team"), "gateway-0", GATEWAY_ADMIN_PORT, '{"ready": true, "ports": [20001]}')
    assert (await pods.cluster.probe(pod, "/readyz", GATEWAY_ADMIN_PORT)).body == {"ready": True, "ports": [20001]}
    assert (await pods.cluster.probe(pod, "/readyz")).status == 0


async def test_all_gateways_of_the_namespace_are_asked_who_waits(pods: Pods) -> None:
    assert await pods.cluster.held(CHAT) is None, "there is none"
    await pods.gateway("gateway-0", 0)
    assert await pods.cluster.held(CHAT) == 0
    await pods.gateway("gateway-1", None)
    assert await pods.cluster.held(CHAT) is None, "one does not say"
    await pods.gateway("gateway-2", 3)
    assert await pods.cluster.held(CHAT) == 3
    assert await pods.cluster.held(Key("other", "chat")) is None


async def test_deployments_of_a_namespace_come_in_the_order_of_names(pods: Pods) -> None:
    for namespace, name in (("team", "b"), ("team", "a"), ("other", "c")):
        metadata = {"name": name, "namespace": namespace, "uid": namespace + name, "resourceVersion": "1"}
        pods.cache.put({"kind": KIND, "metadata": metadata})
    assert [found["metadata"]["name"] for found in await pods.cluster.resources("team")] == ["a", "b"]
    pods.cache.remove({"kind": KIND, "metadata": {"name": "a", "namespace": "team", "uid": "teama"}})
    assert [found["metadata"]["name"] for found in await pods.cluster.resources("team")] == ["b"]
    assert await pods.cluster.resources("nowhere") == ()
