"""The key at the door: with --api-key every route but the probes', /metrics and /version wants `Authorization: Bearer`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from pagemill import endpoints
from pagemill_server.api.answers import error_response
from pagemill_server.errors import Unauthorized

OPEN_PATHS = frozenset({endpoints.HEALTH_PATH, endpoints.READY_PATH, endpoints.METRICS_PATH, endpoints.VERSION_PATH})


class ApiKeys:
    """ASGI middleware. Compares digests in constant time and against every key, so that time tells nothing about them."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._digests or scope["path"] in OPEN_PATHS or self._knows(_bearer(scope)):
            await self._app(scope, receive, send)
            return
        refusal = Unauthorized(
            "Incorrect or missing API key; send it as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error_response(refusal)(scope, receive, send)

    def _knows(self, key: bytes) -> bool:
        given = _digest(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return bool(key) and any(matches)


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return bytes(key).strip() if scheme.lower() == b"bearer" else b""
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
