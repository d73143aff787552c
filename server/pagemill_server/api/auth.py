"""The key at the door: with API keys every route but the probes', /metrics and /version wants `Authorization: Bearer`.

There is no CORS: a browser's preflight has no key and is refused like anything else without one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagemill.endpoints import OPEN_PATHS
from pagemill.keys import ApiKey, bearer
from pagemill_server.api.answers import error_response
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.errors import Unauthorized

CLIENT = "pagemill.client"  # in the ASGI scope: who asks, as policies and their weights name it: the key's name
KEY = "pagemill.key"  # in the ASGI scope: the ApiKey

Headers = Callable[[ApiKey], Sequence[tuple[bytes, bytes]]]


class ApiKeys:
    """ASGI middleware. `headers` are said with every answer to a key; a sequence of keys is one that never changes."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing | Sequence[str],
        open_paths: Collection[str] = OPEN_PATHS,
        headers: Headers = lambda key: (),
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = keys if isinstance(keys, KeyRing) else KeyRing(keys)
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys.required or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
        elif (key := self._keys.find(_bearer(scope))) is not None:
            scope[KEY], scope[CLIENT] = key, key.name
            await self._app(scope, receive, self._with_headers(key, send))
        else:
            await error_response(_refusal())(scope, receive, send)

    def _with_headers(self, key: ApiKey, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers(key)]
            await send(message)

        return sending


def _refusal() -> Unauthorized:
    return Unauthorized(
        "Incorrect or missing API key; send it as `Authorization: Bearer KEY`.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bearer(bytes(value))
    return b""
