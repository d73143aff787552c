"""One line a request, as key=value: what was asked of which route, how it ended, how long it took. Never text of a client.

Probes and scrapes are only logged when they fail. Also says `Connection: close` while the server drains.
"""

from __future__ import annotations

import json
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagemill_server.api.auth import OPEN_PATHS
from pagemill_server.api.endpoint import LOG_FIELDS
from pagemill_server.lifecycle import Lifecycle, Phase

logger = logging.getLogger("pagemill.access")


class AccessLog:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._lifecycle.phase is Phase.DRAINING:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            _log(scope, status, time.monotonic() - began)


def _log(scope: Scope, status: int, seconds: float) -> None:
    quiet = scope["path"] in OPEN_PATHS and status < 400
    level = logging.DEBUG if quiet or (scope["path"] in OPEN_PATHS and status == 503) else logging.INFO
    if not logger.isEnabledFor(level):
        return
    # A path is a client's own words: cut, and quoted so that it can't begin a line.
    fields = {"method": scope["method"], "path": json.dumps(scope["path"][:100]), "status": status}
    fields |= {"ms": round(seconds * 1000)} | scope.get(LOG_FIELDS, {})
    logger.log(level, " ".join(f"{key}={value}" for key, value in fields.items()))
