"""`/drain` on the management port: how an operator empties a replica before it goes, and sees when it is empty.

POST begins what SIGTERM would begin, but the process stays: unready and answering 503 until somebody ends it, which then takes no
time. GET says how far it is, DELETE calls it off. The drain itself is `drain.Drain`.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pagemill_server.api.answers import json_response
from pagemill_server.api.body import parse_object, read_body
from pagemill_server.api.service import Service
from pagemill_server.drain import Drain, DrainIsFinal, Patience
from pagemill_server.errors import BadRequest, Conflict, Unavailable

_MOST_SECONDS = 86_400.0
_LAME_DUCK, _TIMEOUT = "lameDuckSeconds", "timeoutSeconds"


class Draining:
    """The three methods of the route."""

    def __init__(self, service: Service, drain: Drain) -> None:
        self._service = service
        self._drain = drain

    async def show(self, request: Request) -> Response:
        return json_response(self._state())

    async def begin(self, request: Request) -> Response:
        """Raises BadRequest, and Unavailable while there is no model whose requests could be waited for."""
        body = await read_body(request.scope, request.receive, self._service.body_limits)
        patience = _patience(parse_object(body) if body.strip() else {}, self._drain.default)
        if self._service.lifecycle.loading:
            raise Unavailable("The model is loading: there is nothing to drain.", code="model_loading")
        self._drain.begin(patience)
        return json_response(self._state(), 202)

    async def call_off(self, request: Request) -> Response:
        try:
            await self._drain.call_off()
        except DrainIsFinal:
            raise Conflict("The server was told to stop and can't be called back.", code="shutting_down") from None
        return json_response(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "phase": self._service.lifecycle.phase.value,
            "draining": self._drain.draining,
            "drained": self._drain.drained,
            "inFlight": self._service.in_flight,
        }


def _patience(body: dict[str, Any], default: Patience) -> Patience:
    for name in body:
        if name not in (_LAME_DUCK, _TIMEOUT):
            raise BadRequest(
                f"There is no {name[:100]}; send {_LAME_DUCK} and {_TIMEOUT}, or neither.", param=name[:100]
            )
    return Patience(_seconds(body, _LAME_DUCK, default.lame_duck), _seconds(body, _TIMEOUT, default.timeout))


def _seconds(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        raise BadRequest(f"{name} must be a number of seconds from 0 to {_MOST_SECONDS:g}.", param=name)
    return float(value)
