"""The document, put together when it is first asked for, and its route."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from pagemill import __version__
from pagemill_server.api.openapi.answers import answer_schemas
from pagemill_server.api.openapi.bodies import body_schemas
from pagemill_server.api.openapi.paths import headers, paths

_ABOUT = (
    "OpenAI's API, with vLLM's words beside it. A key that is not named here is refused; one whose values are listed takes them, "
    "for they ask for nothing, and no other."
)


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagemill", "version": __version__, "description": _ABOUT, "license": _license()},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [
            {"name": "model", "description": "What the model is asked."},
            {"name": "server", "description": "What the server says of itself."},
        ],
        "paths": paths(),
        "components": {
            "schemas": dict(sorted((body_schemas() | answer_schemas()).items())),
            "headers": headers(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Where the server was given API keys."}
            },
        },
    }


def _license() -> dict[str, str]:
    return {"name": "Apache 2.0", "identifier": "Apache-2.0"}


@cache
def _bytes() -> bytes:
    return orjson.dumps(document())


async def show(request: Request) -> Response:
    return Response(_bytes(), media_type="application/json")
