"""`pagemill operator` at its door: flags, no cluster, and what its probe says while it waits."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from pagemill_operator import commands
from pagemill_operator.liveness import answering


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "one of the arguments --namespace/-n --all-namespaces/-A is required"),
        (["-n", "a", "-A"], "not allowed with"),
        (["-A", "--liveness", "8080"], "is not like http://0.0.0.0:8080/healthz"),
        (["-A", "--liveness", "http://0.0.0.0:99999/x"], "is not like http://"),
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
