"""Responses as JSON, and every error as OpenAI's error object with the status that `errors` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagemill_server.api.record import record_of
from pagemill_server.errors import ApiError, EngineFailed, MethodNotAllowed, NotFound


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, dict(headers or {}), media_type="application/json")


class ErrorResponse(Response):
    """Tells the request's record why it failed."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(orjson.dumps(error.body()), error.status, dict(error.headers), media_type="application/json")
        self._failure = error.code or error.type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).failure = self._failure
        await super().__call__(scope, receive, send)


def error_response(error: ApiError) -> Response:
    return ErrorResponse(error)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """What the router says: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    method, path = request.method[:20], request.url.path[:200]
    if error.status_code == MethodNotAllowed.status:
        return error_response(MethodNotAllowed(f"{method} is not allowed for {path}.", headers=error.headers))
    return error_response(NotFound(f"There is no route {method} {path}.", code="unknown_url"))


async def on_bug(request: Request, error: Exception) -> Response:
    """Anything unforeseen; the framework raises it again, so that the log has its traceback."""
    return error_response(EngineFailed("The server failed to handle this request."))
