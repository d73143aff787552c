"""Routes that ask nothing of the model: /health, /ready, /metrics, /version, /v1/models, /tokenizer_info."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pagemill import __version__, hot_settings
from pagemill_server.api.answers import json_response
from pagemill_server.api.service import Service
from pagemill_server.metrics import CONTENT_TYPE


class Status:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        """200 while loading moves or the engine advances: what liveness and startup probes ask."""
        trouble = self.trouble()
        return json_response({"status": "ok"}) if trouble is None else json_response({"status": trouble}, 503)

    def trouble(self) -> str | None:
        service = self._service
        if service.loaded is None:
            stuck = service.lifecycle.stuck_for()
            return f"loading has not moved for {stuck:.0f} s" if stuck > service.startup_timeout else None
        if service.loaded.engine.dead is not None:
            return f"the engine ended: {service.loaded.engine.dead}"
        stalled = service.loaded.engine.stalled_for()
        return f"nothing has moved for {stalled:.0f} s while work waits" if stalled > service.stall_timeout else None

    async def ready(self, request: Request) -> Response:
        """200 when requests are taken; the same JSON with 503 while loading, draining or in trouble."""
        body = self._service.lifecycle.ready_body()
        body["ready"] = body["ready"] and self.trouble() is None
        loaded = self._service.loaded
        settings = None if loaded is None else self._service.hot_settings(loaded.engine.config)
        body["settings"] = None if settings is None else hot_settings.digest(settings)
        return json_response(body, 200 if body["ready"] else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._card(name) for name in self._service.served_names]})

    async def model(self, request: Request) -> Response:
        return json_response(self._card(self._service.name_of(request.path_params["name"])))

    async def tokenizer_info(self, request: Request) -> Response:
        """What vLLM's clients ask before they send texts to /tokenize, lm-eval among them."""
        tokenizer = self._service.admit().tokenizer
        return json_response(
            {
                "tokenizer_class": type(tokenizer.backend).__name__,
                "bos_token": tokenizer.bos_token or None,
                "eos_token": tokenizer.eos_token or None,
                "chat_template": tokenizer.chat_template,
            }
        )

    def _card(self, name: str) -> dict[str, Any]:
        loaded = self._service.loaded
        return {
            "id": name,
            "object": "model",
            "created": self._service.created,
            "owned_by": "pagemill",
            "root": self._service.served_names[0],
            "parent": None,
            "max_model_len": None if loaded is None else loaded.context,
        }
