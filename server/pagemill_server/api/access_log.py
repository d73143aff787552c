"""The door of each port: gives a request its id and its record, and writes one line of JSON when the answer is over.

A line holds no word of a client's but the request id: the route in place of the path, the names of served models and of keys.
`--log-content` adds the prompt and the output. Probes and scrapes are only logged when they fail. Also says `Connection: close`
while the server drains, and hands the record to the traces. Used by `api/app`, `api/management` and `api/http_protocol`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from pagemill.endpoints import OPEN_PATHS
from pagemill_server.api import request_id
from pagemill_server.api.auth import CLIENT
from pagemill_server.api.record import Record, begin_record
from pagemill_server.api.service import Service
from pagemill_server.lifecycle import Phase

logger = logging.getLogger("pagemill.access")
faults = logging.getLogger(__name__)


class Traces(Protocol):
    """Where spans go; see `api/tracing`."""

    def add(self, record: Record, scope: Scope) -> None: ...

    async def close(self) -> None: ...


class AccessLog:
    """ASGI middleware, the outermost. `quiet`: paths asked all the time, whose GET is only logged when it fails."""

    def __init__(
        self,
        app: Starlette,
        service: Service,
        *,
        quiet: Collection[str] = OPEN_PATHS,
        names_keys: bool = True,
        traces: Traces | None = None,
    ) -> None:
        self._app = app
        self._service = service
        self.routes = [route for route in app.routes if isinstance(route, Route)]
        self._quiet = quiet
        self._names_keys = names_keys  # not where a token is asked for, which is no client's
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = Record(
            request_id.request_id_of(scope["headers"]),
            scope["method"],
            self._route_of(scope["path"]),
            keeps_content=self._service.log_content,
        )
        begin_record(scope, record)

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._headers(record)]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:
            record.failure = record.failure or "cancelled"
            raise
        except Exception as error:  # noqa: BLE001  the framework has answered it, and the server would log what it says
            record.failure = record.failure or "server_error"
            log_bug(error, record)
        finally:
            self._end(record, scope)

    def _route_of(self, path: str) -> str | None:
        return next((route.path for route in self.routes if route.path_regex.match(path)), None)

    def _headers(self, record: Record) -> list[tuple[bytes, bytes]]:
        headers = [(request_id.HEADER, record.request_id.encode())]
        if self._service.lifecycle.phase is Phase.DRAINING:
            headers.append((b"connection", b"close"))
        return headers

    def _end(self, record: Record, scope: Scope) -> None:
        record.ended = time.monotonic()
        if self._names_keys and (client := scope.get(CLIENT)) is not None:
            record.key = str(client)
        quiet = record.route in self._quiet and record.method in ("GET", "HEAD") and _is_quiet(record.status)
        log(record, logging.DEBUG if quiet else logging.INFO)
        if self._traces is not None and not quiet:
            self._traces.add(record, scope)


def _is_quiet(status: int | None) -> bool:
    """503 is what /ready says all the time that a model loads."""
    return status is not None and (status < 400 or status == 503)


def log(record: Record, level: int = logging.INFO) -> None:
    if logger.isEnabledFor(level):
        logger.log(level, "%s", orjson.dumps(_line(record), default=str).decode())


def log_bug(error: BaseException, record: Record) -> None:
    """What nobody foresaw: where it happened, but not its message, which may quote the client, unless content may be logged."""
    where = "".join(traceback.format_tb(error.__traceback__))
    message = f": {error}" if record.keeps_content else ""
    faults.error("request %s failed: %s%s\n%s", record.request_id, type(error).__name__, message, where)


def _line(record: Record) -> dict[str, Any]:
    began = datetime.fromtimestamp(record.started_unix_ns / 1e9, UTC)
    first = record.times.first
    line: dict[str, Any] = {
        "time": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": record.request_id,
        "method": record.method,
        "path": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "ms": round((record.ended - record.started) * 1000),
        "key": record.key,
    } | record.fields
    if first is not None:
        line["first_token_ms"] = round((first - record.started) * 1000)
    if reasons := record.finish_reasons:
        line["finish_reasons"] = reasons
    if record.keeps_content:
        line |= {"prompt": record.prompt, "output": record.outputs}
    return line


class LogFormat(logging.Formatter):
    """Lines of the access log are JSON and nothing else, so that a collector can read them; all others say when and who."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == logger.name else super().format(record)
