"""One HTTP request as the kubelet and the operator ask it of a pod: a status and a JSON object, or a text, never an exception.

Used by both clusters: over a pod's address in Kubernetes, over a local port on one machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from pagemill_operator.cluster.interface import Probe

_BODY_LIMIT = 64 * 1024  # bytes; /health and /ready send a few hundred
_TEXT_LIMIT = 4 * 1024 * 1024  # bytes; /metrics sends some ten thousand
NO_ANSWER = Probe(0, {})


async def get(session: aiohttp.ClientSession, url: str, seconds: float) -> Probe:
    """GET `url` within `seconds`; redirects are not followed."""
    return await ask(session, "GET", url, seconds)


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    seconds: float,
    *,
    token: str | None = None,
    body: Mapping[str, Any] | None = None,
) -> Probe:
    """The same of any method, with a bearer token and a JSON body where they are given."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = session.request(method, url, headers=headers, json=body, allow_redirects=False)
    try:
        async with asyncio.timeout(seconds), request as response:
            text = await response.content.read(_BODY_LIMIT)
            return Probe(response.status, _json_object(text))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return NO_ANSWER


async def text(session: aiohttp.ClientSession, url: str, seconds: float) -> str | None:
    """What a 200 of `url` says within `seconds`, whole, or None."""
    try:
        async with asyncio.timeout(seconds), session.get(url, allow_redirects=False) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _TEXT_LIMIT:
                    return None
            return body.decode("utf-8", "replace") if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


def _json_object(text: bytes) -> dict[str, object]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
