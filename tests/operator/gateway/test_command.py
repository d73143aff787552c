"""`pagemill gateway` as a process: it follows a cluster, tells how it stands, and ends by SIGTERM without cutting anybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill_operator.gateway import metrics
from pagemill_operator.gateway.route import SERVICE_NAME_LABEL, Route
from tests.operator.gateway.api_server import ApiServer
from tests.operator.gateway.conftest import CHAT, PATIENCE, Upstream, free_port
from tests.operator.gateway.test_cluster_routes import service


class Process:
    def __init__(self, process: asyncio.subprocess.Process, admin: int, session: aiohttp.ClientSession) -> None:
        self.process, self.session = process, session
        self.admin = f"http://127.0.0.1:{admin}"

    async def look(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.admin + path) as response:
            return response.status, await response.text()

    async def until_ready(self, ready: bool = True, *ports: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectorError):
                    async with self.session.get(f"{self.admin}/readyz") as response:
                        body = await response.json()
                        if (
                            body["ready"] is ready
                            and (response.status == 200) is ready
                            and body["ports"] == list(ports)
                        ):
                            return
                await asyncio.sleep(0.02)

    async def samples(self) -> dict[str, float]:
        """By name and labels in text."""
        _, text = await self.look("/metrics")
        families = text_string_to_metric_families(text)
        return {
            ":".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "operator"))}


@pytest.fixture
async def api() -> AsyncIterator[tuple[ApiServer, str]]:
    server = ApiServer()
    async with server.listening() as url:
        yield server, url


@pytest.fixture
async def process(api: tuple[ApiServer, str], tmp_path: Path) -> AsyncIterator[Process]:
    admin = free_port()
    command = [sys.executable, "-m", "pagemill", "gateway", "--api-url", api[1], "--api-account", str(tmp_path)]
    flags = ["--namespace", "ns", "--host", "127.0.0.1", "--admin-port", str(admin), "--keys-dir", str(tmp_path)]
    started = await asyncio.create_subprocess_exec(*command, *flags, env=ENV)
    async with aiohttp.ClientSession() as session:
        yield Process(started, admin, session)
    if started.returncode is None:
        started.kill()
        await started.wait()


def put(server: ApiServer, route: Route, *upstreams: Upstream) -> None:
    server.put("services", service(route.to_json()))
    for each in upstreams:
        slices = {
            "metadata": {"name": f"s{each.port}", "labels": {SERVICE_NAME_LABEL: "chat-replicas"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"port": each.port}],
        }
        server.put("endpointslices", slices)


async def test_from_asleep_to_its_end(api: tuple[ApiServer, str], process: Process, upstream: Upstream) -> None:
    server, _ = api
    route = Route("chat", free_port(), wake_timeout_seconds=60, lame_duck_seconds=3)
    put(server, route)
    await process.until_ready(True, route.port)
    assert (await process.look("/healthz"))[0] == 200
    samples = await process.samples()
    assert samples[f"{metrics.WAITING}:chat"] == samples[f"{metrics.RUNNING}:chat"] == 0
    assert {name.rpartition(":")[2] for name in samples if name.startswith(metrics.REQUESTS)} == set(metrics.OUTCOMES)

    upstream.answer = upstream.hold
    asking = asyncio.create_task(process.session.post(f"http://127.0.0.1:{route.port}{CHAT}", data="{}"))
    async with asyncio.timeout(PATIENCE):
        while (await process.samples())[f"{metrics.WAITING}:chat"] != 1:  # noqa: ASYNC110  it is asked
            await asyncio.sleep(0.02)
    put(server, route, upstream)
    await upstream.one_came()
    samples = await process.samples()
    assert samples[f"{metrics.WAITING}:chat"] == 0
    assert samples[f"{metrics.RUNNING}:chat"] == samples[f"{metrics.READY_REPLICAS}:chat"] == 1
    assert samples[f"{metrics.REPLICA_REQUESTS}:chat:{upstream.address}"] == 1
    assert samples[f"{metrics.WAIT_SECONDS}_count"] == 1

    process.process.send_signal(signal.SIGTERM)
    await process.until_ready(False, route.port)
    upstream.release.set()
    async with await asking as response:
        assert response.status == 200
    assert await asyncio.wait_for(process.process.wait(), PATIENCE) == 0


async def test_a_second_signal_ends_it_at_once(api: tuple[ApiServer, str], process: Process) -> None:
    route = Route("chat", free_port(), lame_duck_seconds=600)
    put(api[0], route)
    await process.until_ready(True, route.port)
    process.process.send_signal(signal.SIGTERM)
    await process.until_ready(False, route.port)
    process.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.process.wait(), PATIENCE) == 0


async def test_outside_a_cluster_it_says_what_is_wanting(tmp_path: Path) -> None:
    for flags, words in (
        ((), b"KUBERNETES_SERVICE_HOST"),
        (("--api-url", "http://x", "--api-account", str(tmp_path)), b"namespace"),
    ):
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pagemill", "gateway", *flags), env=ENV, stderr=asyncio.subprocess.PIPE
        )
        _, said = await started.communicate()
        assert started.returncode == 1
        assert words in said
