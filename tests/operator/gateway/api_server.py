"""As much of an API server as a watch needs, over real HTTP: lists, watches with versions, bookmarks, 410, and being away.

Not a stand-in for Kubernetes: the cluster tests run the gateway in a real one. Here a test makes what a real one does rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

Manifest = dict[str, Any]
KINDS = ("services", "endpointslices")


class ApiServer:
    """`put` and `drop` change objects and tell the watches; `events` keeps what happened for those that begin later."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Manifest]] = {kind: {} for kind in KINDS}
        self.version = 100
        self.asked: list[tuple[str, dict[str, str], str]] = []  # kind, query, Authorization
        self.away = False  # answers 503
        self.expired: set[str] = set()  # kinds whose next watch is answered with 410
        self.watching = dict.fromkeys(KINDS, 0)
        self._events: dict[str, list[tuple[int, Manifest]]] = {kind: [] for kind in KINDS}
        self._streams: set[web.StreamResponse] = set()
        self._change = asyncio.Event()

    def put(self, kind: str, manifest: Manifest) -> None:
        known = self.objects[kind]
        name = manifest["metadata"]["name"]
        self._happened(kind, "MODIFIED" if name in known else "ADDED", manifest)
        known[name] = manifest

    def drop(self, kind: str, name: str) -> None:
        self._happened(kind, "DELETED", self.objects[kind].pop(name))

    def say(self, kind: str, event: Manifest) -> None:
        """An event as it is."""
        self.version += 1
        self._events[kind].append((self.version, event))
        self._stir()

    def cut(self) -> None:
        """Every connection that watches."""
        for stream in self._streams:
            transport = stream._req.transport if stream._req is not None else None
            if transport is not None:
                transport.abort()

    def _happened(self, kind: str, event: str, manifest: Manifest) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self._events[kind].append((self.version, {"type": event, "object": json.loads(json.dumps(manifest))}))
        self._stir()

    def _stir(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        kind, query = request.path.rsplit("/", 1)[-1], dict(request.query)
        self.asked.append((request.path, query, request.headers.get("Authorization", "")))
        if self.away:
            return web.json_response({"kind": "Status", "message": "etcd is away"}, status=503)
        if "watch" not in query:
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"metadata": metadata, "items": list(self.objects[kind].values())})
        if kind in self.expired:
            self.expired.remove(kind)
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        return await self._watch(request, kind, int(query["resourceVersion"]))

    async def _watch(self, request: web.BaseRequest, kind: str, after: int) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self._streams.add(response)
        self.watching[kind] += 1
        try:
            while True:
                change = self._change
                for version, event in [each for each in self._events[kind] if each[0] > after]:
                    line = json.dumps(event).encode() + b"\n"
                    await response.write(line[: len(line) // 2])  # a line may come in pieces
                    await response.write(line[len(line) // 2 :])
                    after = version
                await change.wait()
        finally:
            self.watching[kind] -= 1
            self._streams.discard(response)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its URL."""
        runner = web.ServerRunner(web.Server(self._serve, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
