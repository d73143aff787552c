"""What the gateway answers by itself: a refusal as OpenAI's error object, and what a sleeping deployment still says.

Pure but for aiohttp's response objects. While no replica is ready only requests for the model wait; probes, scrapes and lists are
answered here and wake nobody. Used by `proxy`, `early` and `http_server`.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from pagemill import endpoints
from pagemill_operator.gateway.errors import RETRY_AFTER_SECONDS, Refusal, Unavailable, error_object
from pagemill_operator.gateway.route import Route

# POST to these needs the model: it may wait for a replica, and wakes the deployment.
MODEL_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
    }
)
MODELS_PATH = "/v1/models"
_CREATED = int(time.time())  # as the server says it: when the process began


def refused(refusal: Refusal) -> web.Response:
    return web.json_response(refusal.body(), status=refusal.status, headers=refusal.headers)


def error_event(error: dict[str, Any]) -> bytes:
    """An error where the status has long been sent: the last event of a stream."""
    return b"data: " + json.dumps(error).encode() + b"\n\n"


def without_replicas(route: Route, method: str, path: str) -> web.Response:
    """The answer to what does not wait for a replica while none is ready. Raises Unavailable.

    Whoever sleeps is well and known; whoever has lost its replicas, or loads, is not."""
    if method in ("GET", "HEAD"):
        if path == endpoints.HEALTH_PATH and route.sleeps:
            return web.json_response({"status": "ok", "readyReplicas": 0})
        if path == endpoints.READY_PATH:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            return web.json_response({"ready": False, "readyReplicas": 0}, status=503, headers=headers)
        if route.sleeps and route.models and (path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/")):
            return _models(route.models, path)
    raise no_replica(route)


def no_replica(route: Route) -> Unavailable:
    return Unavailable(f"No replica of {route.deployment} is ready.", "no_ready_replica")


def _models(names: tuple[str, ...], path: str) -> web.Response:
    if path == MODELS_PATH:
        return web.json_response({"object": "list", "data": [_card(name, names[0]) for name in names]})
    name = unquote(path.removeprefix(f"{MODELS_PATH}/"))
    if name in names:
        return web.json_response(_card(name, names[0]))
    said = f"The model `{name[:200]}` does not exist; served: {', '.join(names)}."
    return web.json_response(error_object(said, "invalid_request_error", "model_not_found", "model"), status=404)


def _card(name: str, root: str) -> dict[str, Any]:
    """The server's, but for what only a loaded model knows."""
    return {
        "id": name,
        "object": "model",
        "created": _CREATED,
        "owned_by": "pagemill",
        "root": root,
        "parent": None,
        "max_model_len": None,
    }
