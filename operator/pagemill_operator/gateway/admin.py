"""The admin port: /metrics for Prometheus and the operator, /healthz for liveness, /readyz for the endpoints. Used by `command`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from pagemill_operator.gateway.gateway import Gateway
from pagemill_operator.gateway.metrics import GatewayMetrics

METRICS_PATH = "/metrics"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def answering(host: str | None, port: int, gateway: Gateway, metrics: GatewayMetrics) -> AsyncIterator[int]:
    """As long as this is open; the port. Raises OSError where it is taken."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        """The operator reads the ports, too: it leads clients only to those that listen."""
        body = {"ready": gateway.ready, "ports": list(gateway.ports)}
        return web.json_response(body, status=200 if gateway.ready else 503)

    app = web.Application()
    for path, handler in ((METRICS_PATH, page), (HEALTH_PATH, health), (READY_PATH, ready)):
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
