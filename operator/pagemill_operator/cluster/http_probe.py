"""One HTTP GET as the kubelet and the operator ask it of a pod: a status and a JSON object, never an exception.

Used by both clusters: over a pod's address in Kubernetes, over a local port on one machine.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp

from pagemill_operator.cluster.interface import Probe

_BODY_LIMIT = 64 * 1024  # bytes; /health and /ready send a few hundred
NO_ANSWER = Probe(0, {})


async def get(session: aiohttp.ClientSession, url: str, seconds: float) -> Probe:
    """GET `url` within `seconds`; redirects are not followed."""
    try:
        async with asyncio.timeout(seconds), session.get(url, allow_redirects=False) as response:
            text = await response.content.read(_BODY_LIMIT)
            return Probe(response.status, _json_object(text))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return NO_ANSWER


def _json_object(text: bytes) -> dict[str, object]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
