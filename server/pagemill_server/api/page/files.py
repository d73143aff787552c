"""The page's files, read once: no build step, nothing from elsewhere, and nothing in them that needs the token.

Each goes out with headers that let it load from this origin only and run no other script. Knows nothing of what the page shows:
that comes from /debug/blocks, with the token. Called by `api/management`.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pagemill import endpoints

INDEX = "index.html"
FOLDER = f"{endpoints.PAGE_PATH}page/"  # the address of all others

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def page_routes() -> list[Route]:
    """One a file, so that no path of a client's ever meets the file system."""
    found = {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}
    return [
        Route(
            endpoints.PAGE_PATH if name == INDEX else FOLDER + name,
            partial(_serve, content, _TYPES[name.rpartition(".")[2]]),
            methods=["GET"],
        )
        for name, content in sorted(found.items())
    ]


async def _serve(content: bytes, media_type: str, request: Request) -> Response:
    return Response(content, headers=_HEADERS, media_type=media_type)
