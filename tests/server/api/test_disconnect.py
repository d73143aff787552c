"""A client that hangs up frees its blocks, whether it was being streamed to, waiting for a whole answer, or still sending."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from pagemill import metrics as names
from tests.server.api.running import Running, until
from tests.server.api.test_metrics import samples

LONG: dict[str, Any] = {"prompt": "once", "max_tokens": 4000, "ignore_eos": True}


def send(server: Running, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.settimeout(30)
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    return raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
def test_hanging_up(idle_server: Running, stream: bool, prompts: int) -> None:
    before = samples(idle_server)[f'{names.REQUEST_SUCCESS}{{finished_reason="abort"}}']
    raw = send(idle_server, LONG | {"prompt": ["once"] * prompts, "stream": stream})
    until(lambda: idle_server.stats.num_running == prompts)
    if stream:
        assert raw.recv(100).startswith(b"HTTP/1.1 200 OK")
    raw.close()
    idle_server.wait_idle()
    after = samples(idle_server)
    assert after[names.RUNNING] == after[names.WAITING] == after[names.KV_CACHE_USAGE] == 0
    assert after[f'{names.REQUEST_SUCCESS}{{finished_reason="abort"}}'] == before + prompts


def test_hanging_up_while_the_body_is_on_its_way(idle_server: Running) -> None:
    raw = socket.create_connection(("127.0.0.1", idle_server.port))
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    until(lambda: idle_server.service.in_flight == 1)
    raw.close()
    idle_server.wait_idle()


def test_the_others_are_not_disturbed(idle_server: Running) -> None:
    with idle_server.client() as client:
        body = {"prompt": "other", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        alone = client.post("/v1/completions", json=body).json()["choices"]
        raws = [send(idle_server, LONG | {"stream": True}) for _ in range(3)]
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            lines = response.iter_lines()
            received = [next(lines)]
            for raw in raws:
                raw.close()
            received += lines
    chunks = [json.loads(line.removeprefix("data: ")) for line in received if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone[0]["text"]
