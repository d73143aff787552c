"""The ASGI application: every route of the serving port, and what stands before them.

access log → key → router → endpoint. Made once by `serve`.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from pagemill import endpoints
from pagemill_server.api.access_log import AccessLog, Traces
from pagemill_server.api.answers import on_api_error, on_bug, on_http_error
from pagemill_server.api.auth import ApiKeys
from pagemill_server.api.chat import ChatCompletions
from pagemill_server.api.completions import Completions
from pagemill_server.api.embeddings import Embeddings
from pagemill_server.api.openapi import document
from pagemill_server.api.openapi.paths import PATH as OPENAPI_PATH
from pagemill_server.api.responses.endpoint import Responses, not_stored
from pagemill_server.api.service import Service
from pagemill_server.api.status import Status
from pagemill_server.api.tokenize import Detokenize, Tokenize
from pagemill_server.errors import ApiError


def make_app(service: Service, traces: Traces | None = None) -> AccessLog:
    status = Status(service)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
            Route("/v1/completions", Completions(service), methods=["POST"]),
            Route("/v1/embeddings", Embeddings(service), methods=["POST"]),
            Route("/tokenize", Tokenize(service), methods=["POST"]),
            Route("/detokenize", Detokenize(service), methods=["POST"]),
            Route("/tokenizer_info", status.tokenizer_info),
            Route("/v1/responses", Responses(service), methods=["POST"]),
            Route("/v1/responses/{id}", not_stored, methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", not_stored, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", not_stored, methods=["GET"]),
            Route("/v1/models", status.models),
            Route("/v1/models/{name:path}", status.model),
            Route(OPENAPI_PATH, document.show),
            Route(endpoints.HEALTH_PATH, status.health),
            Route(endpoints.READY_PATH, status.ready),
            Route(endpoints.METRICS_PATH, status.metrics),
            Route(endpoints.VERSION_PATH, status.version),
        ],
        middleware=[Middleware(ApiKeys, keys=service.keys, headers=service.quotas.headers)],
        exception_handlers={ApiError: on_api_error, HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False
    return AccessLog(app, service, traces=traces)
