"""Answers liveness probes while the operator waits for its cluster or its CRD: it is alive, and a restart would not help.

Afterwards kopf answers at the same address, and `worker.stuck` decides. Called by `__main__`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from aiohttp import web


@contextlib.asynccontextmanager
async def answering(url: str | None) -> AsyncIterator[None]:
    """200 at `url` as long as this is open; nothing where there is none."""
    if url is None:
        yield
        return
    parts = urlsplit(url)

    async def alive(_: web.BaseRequest) -> web.Response:
        return web.json_response({"worker": "waiting"})

    runner = web.ServerRunner(web.Server(alive, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, parts.hostname, parts.port).start()
        yield
    finally:
        await runner.cleanup()
