"""What a client can have wrong outside the body's JSON is a 4xx in the same words: route, method, size, pace, and HTTP itself."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from pagemill_server.api import http_protocol
from tests.server.api.asking import CHAT, COMPLETIONS, error_of, exchange, post
from tests.server.api.running import Running, serving


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/chat/completions/", "/v1/models/", "/%0d%0a", "/health/x"]
)
def test_an_unknown_route(idle_server: Running, path: str) -> None:
    with idle_server.client() as client:
        response = client.get(path)
    assert response.status_code == 404
    error_of(response)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("DELETE", COMPLETIONS, "POST"), ("POST", "/health", "GET"), ("PUT", "/v1/models", "GET")],
)
def test_a_wrong_method(idle_server: Running, method: str, path: str, allowed: str) -> None:
    with idle_server.client() as client:
        response = client.request(method, path)
    assert response.status_code == 405
    assert allowed in response.headers["allow"]
    error_of(response)


def test_a_body_too_large(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server:
        told = post(server, COMPLETIONS, json={"prompt": "a" * 1000})
        untold = post(server, COMPLETIONS, content=iter([b" " * 600, b" " * 600]))  # chunked: no length in front
        for response in (told, untold):
            assert response.status_code == 413
            assert error_of(response)["code"] == "body_too_large"
        assert post(server, COMPLETIONS, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_client_that_is_refused_while_it_sends_gets_its_answer(tiny: Any) -> None:
    """A close with unread bytes is a reset, and some never see the answer that went before it."""
    with serving(tiny, max_body_bytes=1 << 20) as server:
        status, body = exchange(
            server, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + b" " * 3_000_000
        )
        assert status.startswith(b"HTTP/1.1 413 ")
        assert body["error"]["code"] == "body_too_large"


def test_a_client_that_waits_to_be_asked_is_refused_before_it_sends(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
        assert exchange(server, head)[0].startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_is_refused_while_it_arrives(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server, socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000000\r\n\r\n {")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_stalls_is_not_waited_for(tiny: Any) -> None:
    with serving(tiny, body_stall_seconds=0.2) as server:
        status, body = exchange(server, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert status.startswith(b"HTTP/1.1 408 ")
        assert body["error"]["code"] == "body_timeout"
        server.wait_idle()


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_head_that_stalls_is_not_waited_for(
    idle_server: Running, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        if before:
            raw.sendall(before)
            assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_a_connection_that_says_nothing_is_closed(idle_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        assert raw.recv(1) == b""


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("requests", [1, 2])
def test_an_offer_to_upgrade_is_ignored(idle_server: Running, protocol: bytes, requests: int) -> None:
    """Java's HTTP client, and so LangChain4j and Spring AI, offer HTTP/2 with every request; its body must not get lost."""
    body = b'{"prompt": "\\r\\nUpgrade: x", "max_tokens": 1}'
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + offer + b"content-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        for _ in range(requests):
            raw.sendall(head + body)
            received = raw.recv(65536)
            assert received.startswith(b"HTTP/1.1 200 ")
            assert json.loads(received.partition(b"\r\n\r\n")[2])["usage"]["prompt_tokens"] == 12


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    ],
)
def test_bad_http(idle_server: Running, data: bytes) -> None:
    status, body = exchange(idle_server, data)
    assert status.startswith(b"HTTP/1.1 400 ")
    assert body["error"]["code"] == "invalid_http"


def test_headers_without_end(idle_server: Running) -> None:
    status, body = exchange(idle_server, b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
    assert status.startswith(b"HTTP/1.1 431 ")
    assert "larger" in body["error"]["message"]
