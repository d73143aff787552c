"""`pagemill operator` at its door: flags, no cluster, what its probe says while it waits, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pagemill_operator import __main__ as main_module
from pagemill_operator import commands
from pagemill_operator.liveness import answering


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "one of the arguments --namespace/-n --all-namespaces/-A is required"),
        (["-n", "a", "-A"], "not allowed with"),
        (["-A", "--liveness", "8080"], "is not like http://0.0.0.0:8080/healthz"),
        (["-A", "--liveness", "http://0.0.0.0:99999/x"], "is not like http://"),
        (["-A", "--metrics-port", "65536"], "is no port from 1 to 65535"),
        (["-A", "--metrics-port", "http"], "is no port from 1 to 65535"),
    ],
)
def test_wrong_flags_are_said(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.operator(argv)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


async def test_it_is_alive_while_it_waits() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/healthz"
    async with aiohttp.ClientSession() as session:
        async with answering(url), session.get(url) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)
    async with answering(None):
        pass


async def test_it_ends_when_told_to_while_it_waits_for_the_crd(tmp_path: Path) -> None:
    """In a pod it is the first process, which no signal ends that it has no handler for."""

    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"message": "no such thing"}, status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", nothing)
    async with TestServer(app) as server:
        kubeconfig = tmp_path / "config"
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        clusters = [{"name": "c", "cluster": {"server": str(server.make_url("/")).rstrip("/")}}]
        users = [{"name": "u", "user": {"token": "t"}}]
        config = {"current-context": "c", "contexts": [context], "clusters": clusters, "users": users}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pagemill_operator", "-A"),
            env=os.environ | {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr
        said = await asyncio.wait_for(process.stderr.readline(), 60)
        assert b"install the CRD" in said
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert b"Traceback" not in await process.stderr.read()


async def test_a_watch_that_ends_by_itself_ends_the_lead_first_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process begins anew, and the other operator at once."""
    led, freed = asyncio.Event(), asyncio.Event()

    async def give_up(**_: object) -> None:
        await led.wait()
        raise RuntimeError("out of order")

    async def lead() -> None:
        led.set()
        try:
            await asyncio.Event().wait()
        finally:
            freed.set()

    monkeypatch.setattr(kopf, "operator", give_up)  # the real one can't be made to fail without a cluster
    flags = argparse.Namespace(namespace=None, liveness=None)
    with pytest.raises(main_module._WatchEnded, match="the watch has ended: RuntimeError: out of order"):
        await asyncio.wait_for(main_module._watch_and_lead(kopf.OperatorRegistry(), flags, lead(), asyncio.Event()), 30)
    assert freed.is_set()


async def test_what_leads_and_fails_ends_the_watch_and_is_not_hidden() -> None:
    registry, watching = kopf.OperatorRegistry(), asyncio.Event()

    @kopf.on.startup(registry=registry)
    async def begin(**_: object) -> None:
        watching.set()
        await asyncio.Event().wait()

    async def lead() -> None:
        await watching.wait()
        raise ValueError("a bug")

    flags = argparse.Namespace(namespace=None, liveness=None)
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(main_module._watch_and_lead(registry, flags, lead(), asyncio.Event()), 30)
