"""Follows the Services and EndpointSlices of one namespace over plain HTTPS and hands on a new table whenever they change.

A list, then watches from where it ended, again and again; an API server that is away changes nothing of what is served. The token
is read for each request, because kubelets renew it. Two small lists need no client library. Used by `command`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pagemill_operator.gateway.cluster_routes import Manifest, table_of
from pagemill_operator.gateway.route import RouteTable
from pagemill_operator.labels import DEPLOYMENT_LABEL

ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

_WATCH_SECONDS = 120  # then the API server ends it, and the next goes on from there
_LATE_SECONDS = 15.0  # after which a watch that has not ended is taken for dead
_LIST_SECONDS = 15.0
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)  # the last one for good
_SAY_AGAIN_SECONDS = 60.0
_GONE = 410

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterApi:
    """Where the API server is and how to ask it. From the command's flags, or of the pod."""

    url: str
    namespace: str
    token_file: str | None = None
    ca_file: str | None = None

    def path(self, kind: str) -> str:
        group = "/apis/discovery.k8s.io/v1" if kind == "endpointslices" else "/api/v1"
        return f"{self.url}{group}/namespaces/{self.namespace}/{kind}"

    def ssl(self) -> ssl.SSLContext | bool:
        """Made anew each time: the cluster's authority may have been renewed."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True

    def headers(self) -> Mapping[str, str]:
        token = (
            {} if self.token_file is None else {"Authorization": f"Bearer {Path(self.token_file).read_text().strip()}"}
        )
        return {"Accept": "application/json", **token}


class _Away(Exception):
    """The API server could not be asked, or did not want to be."""


class _Expired(Exception):
    """What was changed since is no longer known: all has to be listed again."""


async def follow(api: ClusterApi, publish: Callable[[RouteTable], Awaitable[None]]) -> None:
    """Until cancelled. `publish` is called first when both lists are in, and then after each change."""
    changed = asyncio.Event()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        kinds = [_Kind(session, api, kind, changed.set) for kind in ("services", "endpointslices")]
        for kind in kinds:
            group.create_task(kind.follow())
        table: RouteTable = {}
        while True:
            await changed.wait()
            changed.clear()
            if all(kind.listed for kind in kinds):
                table = table_of(kinds[0].objects.values(), kinds[1].objects.values(), table)
                await publish(table)


class _Kind:
    """The labelled objects of one kind, as far as is known."""

    def __init__(self, session: aiohttp.ClientSession, api: ClusterApi, kind: str, changed: Callable[[], None]) -> None:
        self.objects: dict[str, Manifest] = {}
        self.listed = False
        self._session, self._api, self._kind, self._changed = session, api, kind, changed
        self._version: str | None = None  # up to which all is known; None: it has to be listed
        self._failures = 0  # in a row
        self._said: tuple[str, float] = ("", 0.0)

    async def follow(self) -> None:
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                self._failures = 0
                continue
            except _Expired:
                self._version = None
            except (_Away, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                self._say(error)
            self._failures += 1
            await asyncio.sleep(_RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS)) - 1])

    async def _list(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_LIST_SECONDS)
        async with self._get({}, timeout) as answer:
            body = json.loads(await answer.read())
        self.objects = {found["metadata"]["name"]: found for found in body.get("items") or ()}
        self.listed = True
        self._version = str(body["metadata"]["resourceVersion"])
        self._changed()

    async def _watch(self) -> None:
        """Until the API server ends it."""
        query = {
            "watch": "1",
            "resourceVersion": str(self._version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=_WATCH_SECONDS + _LATE_SECONDS)
        async with self._get(query, timeout) as answer:
            rest = b""
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.strip():
                        self._heard(json.loads(line))

    def _heard(self, event: Mapping[str, Any]) -> None:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == _GONE:
                raise _Expired
            raise _Away(str(found.get("message")))
        self._version, self._failures = str(found["metadata"]["resourceVersion"]), 0
        if kind != "BOOKMARK":
            if kind == "DELETED":
                self.objects.pop(found["metadata"]["name"], None)
            else:
                self.objects[found["metadata"]["name"]] = found
            self._changed()

    @contextlib.asynccontextmanager
    async def _get(
        self, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        params = {"labelSelector": DEPLOYMENT_LABEL, **query}
        asked = self._session.get(
            self._api.path(self._kind), params=params, headers=self._api.headers(), ssl=self._api.ssl(), timeout=timeout
        )
        async with asked as answer:
            if answer.status == _GONE:
                raise _Expired
            if answer.status != 200:
                raise _Away(f"{answer.status}: {(await answer.text())[:200]}")
            yield answer

    def _say(self, error: Exception) -> None:
        """Once a minute, while it lasts."""
        words, now = str(error) or type(error).__name__, time.monotonic()
        if words != self._said[0] or now - self._said[1] >= _SAY_AGAIN_SECONDS:
            _LOG.warning("%s can't be followed: %s; what is served stays as it was", self._kind, words)
            self._said = (words, now)
