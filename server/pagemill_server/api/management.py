"""The second port, which no Service exposes and which asks for a token: what an operator or a person changes on a running server.

`GET /config` says what is in force and which of it is hot; `PATCH /config` changes hot settings between two steps, all of them or
none. `GET /debug/blocks` and the page at `/`, which is open and asks for the token itself, let one look inside. Each further route
is an endpoint of its own in the list below. Made by `serve` where there is a `--management-port`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pagemill import endpoints
from pagemill.failures import PagemillError
from pagemill_server.api.access_log import AccessLog
from pagemill_server.api.answers import json_response, on_api_error, on_bug, on_http_error
from pagemill_server.api.auth import ApiKeys
from pagemill_server.api.blocks import Blocks
from pagemill_server.api.body import parse_object, read_body
from pagemill_server.api.draining import Draining
from pagemill_server.api.page.files import page_routes
from pagemill_server.api.service import Service
from pagemill_server.config import SchedulerConfig
from pagemill_server.drain import Drain
from pagemill_server.engine import hot
from pagemill_server.engine.errors import EngineDead
from pagemill_server.errors import ApiError, BadRequest, Unavailable
from pagemill_server.settings import Settings


def make_management_app(service: Service, settings: Settings, drain: Drain | None = None) -> ASGIApp:
    config, page = Config(service, settings), page_routes()
    draining = Draining(service, drain or Drain(service, settings.server))
    open_paths = frozenset(route.path for route in page)  # the page holds nothing, and asks for the token itself
    app = Starlette(
        routes=[
            Route(endpoints.CONFIG_PATH, config.show, methods=["GET"]),
            Route(endpoints.CONFIG_PATH, config.change, methods=["PATCH"]),
            Route(endpoints.DRAIN_PATH, draining.show, methods=["GET"]),
            Route(endpoints.DRAIN_PATH, draining.begin, methods=["POST"]),
            Route(endpoints.DRAIN_PATH, draining.call_off, methods=["DELETE"]),
            Route(endpoints.BLOCKS_PATH, Blocks(service).show, methods=["GET"]),
            *page,
        ],
        middleware=[Middleware(ApiKeys, keys=(settings.server.management_token,), open_paths=open_paths)],
        exception_handlers={ApiError: on_api_error, HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False
    return AccessLog(app, service, quiet={endpoints.DRAIN_PATH, endpoints.BLOCKS_PATH, *open_paths}, names_keys=False)


class Config:
    """The settings in force."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._one_at_a_time = asyncio.Lock()  # a change is read, checked and applied against the same state

    async def show(self, request: Request) -> Response:
        return json_response(self._shown())

    async def change(self, request: Request) -> Response:
        """Raises BadRequest for an unknown setting or a value that can't be; nothing has changed then."""
        changes = parse_object(await read_body(request.scope, request.receive, self._service.body_limits))
        async with self._one_at_a_time:
            engine = self._service.admit().engine
            try:
                config = hot.changed(engine.config, changes)
                hot.check_memory(config, self._settings.scheduler)
                # A policy of the user's own may take its time to import: not on the event loop.
                await self._service.in_text_thread(partial(hot.check, config))
                engine.configure(self._with_the_keys(config, changes))
            except hot.InvalidSetting as error:
                raise BadRequest(str(error), param=error.name, code="invalid_setting") from None
            except PagemillError as error:
                raise BadRequest(str(error), param="policy", code="invalid_setting") from None
            except EngineDead as dead:
                raise Unavailable(str(dead), code="engine_dead") from None
            if "weights" in changes:
                self._service.asked_weights = dict(config.weights)
        return json_response(self._shown())

    def _with_the_keys(self, config: SchedulerConfig, changes: dict[str, Any]) -> SchedulerConfig:
        """Weights that are asked for take the place of those that were, but not of the keys' own that they don't name."""
        if "weights" not in changes:
            return config
        return replace(config, weights=tuple({**self._service.keys.weights(), **dict(config.weights)}.items()))

    def _shown(self) -> dict[str, Any]:
        loaded, settings = self._service.loaded, self._settings
        scheduler = settings.scheduler if loaded is None else loaded.engine.config
        return {
            "config": hot.as_json(scheduler)
            | {
                "model": settings.model.model,
                "served_model_names": list(settings.model.served_names),
                "dtype": settings.model.dtype,
                "device": settings.model.device,
                "seed": settings.model.seed,
                "block_size": settings.cache.block_size,
                "prefix_caching": settings.cache.prefix_caching,
                "max_model_len": settings.model.max_model_len if loaded is None else loaded.context,
                "num_blocks": None if loaded is None else loaded.limits.num_blocks,
                "num_host_blocks": None if loaded is None else loaded.limits.num_host_blocks,
            },
            "hot": list(hot.NAMES),
            "settings": self._service.hot_settings(scheduler),
        }
