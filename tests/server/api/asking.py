"""One call of a server, by an HTTP client or over a raw connection, and the error that it is refused with."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx

from tests.server.api.running import Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def post(server: Running, path: str, **options: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, **options)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return dict(body["error"])


def exchange(server: Running, data: bytes) -> tuple[bytes, Any]:
    """The status line and the body of what a raw connection gets back before it is closed."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(data)
        received = b""
        while part := raw.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)
