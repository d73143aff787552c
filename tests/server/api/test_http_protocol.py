"""HTTP/1.1 as old and odd clients speak it, over raw connections: pipelines, expectations, chunks, strange methods and paths."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pagemill_server.api import http_protocol
from tests.server.api.asking import error_of, exchange
from tests.server.api.running import Running, until

SHORT: dict[str, Any] = {"prompt": "abc", "max_tokens": 2, "ignore_eos": True}
LONG: dict[str, Any] = {"prompt": "once", "max_tokens": 4000, "ignore_eos": True}

LARGE: dict[str, Any] = LONG | {"max_tokens": 100, "n": 64, "temperature": 1, "logprobs": 20, "stream": True}  # 18 MB
END_OF_EVENTS = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def post(body: dict[str, Any], *headers: bytes) -> bytes:
    data = json.dumps(body).encode()
    head = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-length: %d" % len(data), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + data


def get(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET %s HTTP/1.1" % path, b"host: x", *headers]) + b"\r\n\r\n"


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        yield raw


def everything(raw: socket.socket) -> bytes:
    return b"".join(iter(lambda: raw.recv(65536), b""))


LAST = get(b"/version", b"connection: close")


def test_a_pipeline_is_answered_in_order(idle_server: Running) -> None:
    with connected(idle_server) as raw:
        raw.sendall(post(SHORT, b"x-request-id: one") + get(b"/v1/models", b"x-request-id: two") + LAST)
        received = everything(raw)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    found = [
        received.index(part)
        for part in (b"one\r\n", b'"text_completion"', b"two\r\n", b'"object":"list"', b'"version"')
    ]
    assert found == sorted(found)


def test_a_long_pipeline_is_read_as_it_is_answered(idle_server: Running) -> None:
    number = 5 * http_protocol.MAX_PIPELINED
    with connected(idle_server) as raw:
        raw.sendall(post(SHORT))
        for _ in range(number):
            raw.sendall(get(b"/version"))
        raw.sendall(LAST)
        assert everything(raw).count(b"HTTP/1.1 200 OK") == number + 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_hanging_up_with_a_request_in_the_pipeline(idle_server: Running, stream: bool, apart: bool) -> None:
    """uvicorn stops reading then, and would only see it when it writes; and it would tell the wrong request."""
    first, second = post(LONG | {"stream": stream}), post(SHORT)
    added = idle_server.stats.num_added
    with connected(idle_server) as raw:
        raw.sendall(first if apart else first + second)
        until(lambda: idle_server.stats.num_running == 1)
        if apart:
            raw.sendall(second)
    idle_server.wait_idle()
    assert idle_server.stats.num_added == added + 1, "nobody is there for the second"


def test_rubbish_behind_a_request_does_not_spoil_its_answer(idle_server: Running) -> None:
    device = idle_server.unhurried()
    with connected(idle_server) as raw:
        raw.sendall(post(LONG | {"max_tokens": 300, "stream": True}))
        until(lambda: idle_server.stats.num_running == 1)
        raw.sendall(b"no http at all\r\n\r\n")
        device.hurry.set()
        received = everything(raw)
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(END_OF_EVENTS)


def test_half_a_request_behind_one_does_not_spoil_its_answer(
    idle_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    with connected(idle_server) as raw:
        raw.sendall(post(LONG | {"max_tokens": 3000, "stream": True}))
        until(lambda: idle_server.stats.num_running == 1)
        raw.sendall(b"GET /health HT")
        received = everything(raw)
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(END_OF_EVENTS)


def test_a_client_that_reads_nothing_is_not_waited_for(idle_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "READ_SECONDS", 0.2)
    with connected(idle_server) as raw:
        raw.sendall(post(LARGE))
        until(lambda: idle_server.service.in_flight == 1)
        until(lambda: idle_server.service.in_flight == 0)
        assert not everything(raw).endswith(END_OF_EVENTS)


def test_a_client_that_reads_slowly_gets_all(idle_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than it may read nothing, and never reads nothing for so long, however busy the machine is."""
    monkeypatch.setattr(http_protocol, "READ_SECONDS", 1.0)
    with connected(idle_server) as raw:
        raw.sendall(post(LARGE, b"connection: close"))
        received = b""
        while part := raw.recv(1 << 18):
            received += part
            time.sleep(0.03)
    assert received.endswith(END_OF_EVENTS)


def test_a_client_that_waits_to_be_asked_is_asked(idle_server: Running) -> None:
    head, _, body = post(SHORT, b"expect: 100-continue", b"connection: close").partition(b"\r\n\r\n")
    with connected(idle_server) as raw:
        raw.sendall(head + b"\r\n\r\n")
        assert raw.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(body)
        assert everything(raw).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_chunks(idle_server: Running) -> None:
    data = json.dumps(SHORT).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    status, body = exchange(idle_server, head + chunks)
    assert status.startswith(b"HTTP/1.1 200 ")
    assert body["usage"]["completion_tokens"] == 2


def test_a_head_that_comes_byte_by_byte(idle_server: Running) -> None:
    with connected(idle_server) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in LAST:
            raw.sendall(bytes([byte]))
        assert everything(raw).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "GET", "PUT", "PATCH", "DELETE", "TRACE"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_other_methods(idle_server: Running, method: str, path: str) -> None:
    with idle_server.client() as client:
        response = client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.headers["x-request-id"]
    if method != "HEAD":
        assert method in error_of(response)["message"]


@pytest.mark.parametrize(
    "path",
    [
        b"/%",
        b"/%zz",
        b"/v1/%e4%b8",
        b"/%ff%fe",
        b"/%00",
        b"/%0d%0aset-cookie:%20a",
        b"//",
        b"/../../etc/passwd",
        b"/;?#",
    ],
)
def test_strange_paths(idle_server: Running, path: bytes) -> None:
    status, body = exchange(idle_server, get(path, b"connection: close"))
    assert status.startswith(b"HTTP/1.1 404 ")
    assert body["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    "line", [b"OPTIONS * HTTP/1.1", b"CONNECT example.org:443 HTTP/1.1", b"BREW / HTTP/1.1", b"GET  / HTTP/1.1"]
)
def test_strange_requests(idle_server: Running, line: bytes) -> None:
    status, body = exchange(idle_server, line + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert status.split()[1] in (b"400", b"404")
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_a_url_as_proxies_get_it(idle_server: Running) -> None:
    assert exchange(idle_server, get(b"http://x/version", b"connection: close"))[0].startswith(b"HTTP/1.1 200 ")
