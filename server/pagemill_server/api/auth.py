"""The key at the door: with --api-key every route but the probes', /metrics and /version wants `Authorization: Bearer`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from pagemill import endpoints
from pagemill_server.api.answers import error_response
from pagemill_server.errors import Unauthorized

OPEN_PATHS = frozenset({endpoints.HEALTH_PATH, endpoints.READY_PATH, endpoints.METRICS_PATH, endpoints.VERSION_PATH})


CLIENT = "pagemill.client"  # in the ASGI scope: who asks, as policies and their weights name it: key1, key2 … as they were given


class ApiKeys:
    """ASGI middleware. Compares digests in constant time and against every key, so that time tells nothing about them."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], open_paths: Collection[str] = OPEN_PATHS) -> None:
        self._app = app
        self._open_paths = open_paths
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = self._number_of(_bearer(scope))
        if not self._digests or scope["path"] in self._open_paths or number is not None:
            if number is not None:
                scope[CLIENT] = f"key{number}"
            await self._app(scope, receive, send)
            return
        refusal = Unauthorized(
            "Incorrect or missing API key; send it as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error_response(refusal)(scope, receive, send)

    def _number_of(self, key: bytes) -> int | None:
        """Which of the keys it is, from 1 on."""
        given = _digest(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return 1 + matches.index(True) if key and any(matches) else None


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return bytes(key).strip() if scheme.lower() == b"bearer" else b""
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
