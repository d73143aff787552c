"""The key comes first: before a wait, a wake, a body. What is refused is said as the server says it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pagemill_operator.gateway.errors import Refusal
from pagemill_operator.gateway.key_door import KeyDoor
from tests.operator.gateway.conftest import CHAT, PATIENCE, Setting, Upstream

KEY = {"Authorization": "Bearer sk-a"}


@pytest.fixture
def folder(setting: Setting) -> Path:
    """Where the keys of `tiny` lie, one so far."""
    folder = setting.keys / "tiny"
    folder.mkdir(parents=True)
    (folder / "a").write_text("sk-a")
    return folder


async def test_without_a_key_nothing_waits_wakes_or_passes(setting: Setting, folder: Path, upstream: Upstream) -> None:
    await setting.replicas(keys=True)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sk-a"}):
        async with setting.session.post(setting.url(), data="{}", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert await response.json() == {
                "error": {
                    "message": "Incorrect or missing API key; send it as `Authorization: Bearer KEY`.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            }
    assert not setting.stirred
    async with setting.session.get(setting.url("/v1/models")) as response:
        assert response.status == 401
    await setting.replicas(upstream)
    assert (await setting.ask())[0] == 401
    assert (await setting.ask(headers=KEY))[0] == 200
    assert len(upstream.seen) == 1
    assert upstream.seen[0][2]["Authorization"] == "Bearer sk-a"


async def test_a_body_is_not_read_without_a_key(setting: Setting, folder: Path) -> None:
    await setting.replicas(keys=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", setting.route.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 401 ")
    writer.close()


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version"])
async def test_what_is_open_at_the_server_is_open(
    setting: Setting, folder: Path, upstream: Upstream, path: str
) -> None:
    await setting.replicas(upstream, keys=True)
    async with setting.session.get(setting.url(path)) as response:
        assert response.status == 200


async def test_with_a_key_a_request_waits(setting: Setting, folder: Path, upstream: Upstream) -> None:
    await setting.replicas(keys=True)
    asking = setting.asking(headers=KEY)
    await setting.until(lambda: setting.served.held == 1)
    await setting.replicas(upstream)
    assert (await asking)[0] == 200


async def test_keys_that_can_not_be_read_let_nobody_in(setting: Setting, upstream: Upstream) -> None:
    await setting.replicas(upstream, keys=True)
    async with setting.session.post(setting.url(), data="{}", headers=KEY) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "keys_unavailable")
        assert response.headers["Retry-After"]
    assert not upstream.seen


async def test_keys_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = KeyDoor(str(tmp_path))
    await door.want(["tiny"])
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"{tmp_path / 'tiny'}: it can't be read" in message
    await door.look()
    assert len(caplog.records) == 1, "which is said once"
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "a").write_text("sk-a")
    await door.look()
    door.check("tiny", "Bearer sk-a")
    (folder / "a").unlink()
    (folder / "b").write_text("sk-b")
    await door.look()
    door.check("tiny", "Bearer sk-b")
    with pytest.raises(Refusal):
        door.check("tiny", "Bearer sk-a")
    (folder / "b").write_text("two words")
    await door.look()
    door.check("tiny", "Bearer sk-b")
    await door.want([])
    await door.want(["tiny"])
    with pytest.raises(Refusal, match="can't be read yet"):
        door.check("tiny", "Bearer sk-b")
    assert "sk-" not in caplog.text


async def test_a_key_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a").write_text("sk-a")
    door = KeyDoor(str(tmp_path))
    await door.want(["tiny"])
    for given in ("", "Bearer", "Bearer \udcff", "Bearer ä"):
        with pytest.raises(Refusal, match="Incorrect or missing"):
            door.check("tiny", given)
