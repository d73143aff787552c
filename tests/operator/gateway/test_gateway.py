"""Deployments and their ports: opened, moved and closed while streams run, and the end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace

import aiohttp
import pytest

from pagemill_operator.gateway.route import Route, Target
from tests.operator.gateway.conftest import CHAT, PATIENCE, Setting, Upstream, free_port


async def closed(port: int) -> None:
    """Until nobody listens there any more."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await asyncio.sleep(0.01)


async def test_each_deployment_has_its_port(setting: Setting, upstream: Upstream, other: Upstream) -> None:
    beside = Route("beside", free_port())
    table = {
        "tiny": Target(setting.route, frozenset([upstream.address])),
        "beside": Target(beside, frozenset([other.address])),
    }
    await setting.gateway.apply(table)
    assert await setting.ask() == (200, {"port": upstream.port})
    async with setting.session.post(f"http://127.0.0.1:{beside.port}{CHAT}") as response:
        assert await response.json() == {"port": other.port}
    assert setting.gateway.ports == tuple(sorted((setting.route.port, beside.port)))
    assert setting.gateway.ready


async def test_a_port_that_changes_is_served_on_both_until_its_streams_are_done(
    setting: Setting, upstream: Upstream
) -> None:
    upstream.answer = upstream.hold
    await setting.replicas(upstream, lame_duck_seconds=3)
    old = setting.route.port
    running = setting.asking()
    await upstream.one_came()
    await setting.replicas(upstream, port=free_port())
    moved = setting.asking()
    await upstream.one_came()
    late = asyncio.create_task(setting.session.post(f"http://127.0.0.1:{old}{CHAT}", data="{}"))
    await upstream.one_came()
    await closed(old)
    upstream.release.set()
    assert (await running)[0] == (await moved)[0] == 200
    async with await late as response:
        assert response.status == 200
        assert response.headers["Connection"] == "close"
    await setting.until(lambda: set(setting.gateway._doors) == {setting.route.port})


async def test_a_port_can_pass_to_another_deployment_at_once(
    setting: Setting, upstream: Upstream, other: Upstream
) -> None:
    await setting.replicas(upstream, lame_duck_seconds=60)
    old = setting.route
    swapped = {
        "tiny": Target(replace(old, port=free_port()), frozenset([upstream.address])),
        "beside": Target(Route("beside", old.port), frozenset([other.address])),
    }
    await setting.gateway.apply(swapped)
    assert await setting.ask() == (200, {"port": other.port})
    assert setting.gateway.ready


async def test_a_port_that_comes_back_while_it_closes_stays_open(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(upstream, lame_duck_seconds=3)
    await setting.gateway.apply({})
    await setting.replicas(upstream)
    (retiring,) = [task for task in setting.gateway._tasks if "_retire" in repr(task)]
    await asyncio.wait_for(retiring, PATIENCE)
    assert await setting.ask() == (200, {"port": upstream.port})


async def test_a_taken_port_is_tried_again(setting: Setting, upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        await setting.replicas(upstream, port=taken.getsockname()[1])
        assert not setting.gateway.ready
    await setting.until(lambda: setting.gateway.ready)
    assert await setting.ask() == (200, {"port": upstream.port})


async def test_two_that_ask_for_one_port(setting: Setting, upstream: Upstream, other: Upstream) -> None:
    table = {
        "tiny": Target(setting.route, frozenset([upstream.address])),
        "alpha": Target(Route("alpha", setting.route.port), frozenset([other.address])),
    }
    await setting.gateway.apply(table)
    assert await setting.ask() == (200, {"port": other.port})


async def test_a_drain_serves_on_for_a_while_then_finishes_what_runs(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.hold
    await setting.replicas(upstream, lame_duck_seconds=3)
    running = setting.asking()
    await upstream.one_came()
    draining = asyncio.create_task(setting.gateway.drain(60))
    await setting.until(lambda: setting.gateway.draining)
    assert not setting.gateway.ready
    upstream.answer = upstream.say_who
    async with setting.session.post(setting.url(), data="{}") as response:
        assert response.status == 200
        assert response.headers["Connection"] == "close"
    await closed(setting.route.port)
    assert not draining.done()
    upstream.release.set()
    assert (await running)[0] == 200
    await asyncio.wait_for(draining, PATIENCE)


async def test_a_drain_waits_for_what_runs_of_a_deployment_that_has_gone(setting: Setting, upstream: Upstream) -> None:
    """The last one that needed the gateway: its route goes, then the gateway itself."""
    upstream.answer = upstream.hold
    await setting.replicas(upstream)
    running = setting.asking()
    await upstream.one_came()
    await setting.gateway.apply({})
    draining = asyncio.create_task(setting.gateway.drain(60))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(draining), 0.3)
    upstream.release.set()
    assert (await running)[0] == 200
    await asyncio.wait_for(draining, PATIENCE)


async def test_who_still_waits_at_the_end_is_told_so(setting: Setting) -> None:
    waiting = setting.asking()
    await setting.until(lambda: setting.served.held == 1)
    await asyncio.wait_for(setting.gateway.drain(0.4), PATIENCE)
    status, body = await waiting
    assert (status, body["error"]["code"]) == (503, "shutting_down")


async def test_what_still_runs_at_the_end_is_cut(setting: Setting, upstream: Upstream) -> None:
    upstream.answer = upstream.hold
    await setting.replicas(upstream)
    running = setting.asking()
    await upstream.one_came()
    await asyncio.wait_for(setting.gateway.drain(0.2), PATIENCE)
    await setting.gateway.__aexit__()
    try:
        await running
    except aiohttp.ClientError:
        pass
    else:
        raise AssertionError("it was not cut")


async def test_new_replicas_take_their_share_from_clients_that_keep_their_connections(
    setting: Setting, upstream: Upstream
) -> None:
    """32 of them, which kube-proxy would leave where they are."""
    async with Upstream().listening() as second, Upstream().listening() as third:
        everybody = (upstream, second, third)
        for each in everybody:
            each.answer = each.hold
        await setting.replicas(upstream)
        stopping = asyncio.Event()

        async def client() -> None:
            async with aiohttp.ClientSession() as session:
                while not stopping.is_set():
                    async with session.post(setting.url(), data="{}") as response:
                        assert response.status == 200

        async with asyncio.TaskGroup() as group:
            for _ in range(32):
                group.create_task(client())
            await setting.until(lambda: upstream.running == 32)
            await setting.replicas(*everybody)
            upstream.release.set()
            upstream.release = asyncio.Event()
            await setting.until(lambda: setting.served.outcomes["answered"] == 32)
            await setting.until(lambda: sum(each.running for each in everybody) == 32)
            spread = [each.running for each in everybody]
            stopping.set()
            for each in everybody:
                each.answer = each.say_who
                each.release.set()
    assert max(spread) <= 1.2 * 32 / 3
    assert min(spread) >= 0.8 * 32 / 3
