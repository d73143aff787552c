"""A running local cluster for a test, and a patient look at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pagemill_operator.cluster.interface import Key, Manifest
from pagemill_operator.cluster.local.cluster import LocalCluster
from tests.operator.cluster.local import manifests

PATIENCE = 60.0  # seconds; a slow machine needs some, a test that passes none of it
KEY = Key("default", "tiny")


@dataclass
class Machine:
    """The cluster with one LLMDeployment on it, its front URL, what was logged and which keys were stirred."""

    cluster: LocalCluster
    session: aiohttp.ClientSession
    url: str
    log: list[str]
    stirred: list[Key]
    pids: set[int] = field(default_factory=set)

    async def deploy(self, *flags: str, **rest: Any) -> None:
        await self.cluster.apply(manifests.deployment(*flags, owner_uid=self.uid, **rest))

    @property
    def uid(self) -> str:
        found = self.cluster.store.get("LLMDeployment", KEY.namespace, KEY.name)
        assert found is not None
        return str(found["metadata"]["uid"])

    def pods(self) -> tuple[Manifest, ...]:
        return self.cluster.store.of_deployment(KEY.namespace, KEY.name, "Pod")

    def containers(self) -> list[dict[str, Any]]:
        return [entry for pod in self.pods() for entry in (pod.get("status") or {}).get("containerStatuses", ())]

    def deployment(self) -> Manifest:
        found = self.cluster.store.get("Deployment", KEY.namespace, KEY.name)
        assert found is not None
        return found

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until something is true of the store, looking after every change."""
        changed = asyncio.Event()
        self.cluster.store.listen(lambda _: changed.set())
        async with asyncio.timeout(PATIENCE):
            while not met():
                changed.clear()
                await changed.wait()

    async def until_rolled_out(self, replicas: int) -> None:
        def complete() -> bool:
            status, wanted = self.deployment().get("status") or {}, self.deployment()["metadata"]["generation"]
            counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
            return status.get("observedGeneration") == wanted and counts == [replicas] * 3

        await self.until(complete)

    async def get(self, path: str = "/", **query: str) -> dict[str, Any]:
        async with self.session.get(self.url + path, params=query) as response:
            body: dict[str, Any] = await response.json()
            assert response.status == 200, body
            if "pid" in body:
                self.pids.add(body["pid"])
            return body


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    log: list[str] = []
    stirred: list[Key] = []
    async with (
        LocalCluster(devices=(), models="/nowhere", log=log.append, changed=stirred.append) as cluster,
        aiohttp.ClientSession() as session,
    ):
        cluster.put_resource(manifests.resource())
        port = free_port()
        await cluster.open_front(KEY, port)
        found = Machine(cluster, session, f"http://127.0.0.1:{port}", log, stirred)
        yield found
    assert not alive(found.pids), "a server outlived its cluster"


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run."""
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
