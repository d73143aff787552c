"""One Kubernetes API call: over the official client's asyncio side, with a time limit, and with errors in our own words.

Owns the connections (a few, shared by all callers), their pace, the fence before each write and the translation of what the
server refuses. Knows no kinds and no cache. Used by `kubernetes` and `leases`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME

from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.cluster.pace import Pace

APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
_TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
_CONNECTIONS = 16  # at once; who finds them all in use waits within its own time limit
_PATIENCE = (
    20.0  # seconds that a call waits for the API server to be asked again; a longer wait is the caller's to arrange
)
_SPREAD = 0.3  # seconds over which those that have waited together go on
_AWAY = (502, 503, 504)  # what a proxy, or an API server without etcd, says
_REFUSED = (400, 403, 405, 422)  # asking again can't help
_UNTYPED = "failed to create typed patch object"  # server-side apply of a field that Kubernetes lacks: a 500, and refused for good


class NoCluster(Exception):
    """There is no configuration to reach a cluster with; the message says what was looked for."""


class NotLeading(ClusterError):
    """A write was held back: another operator may lead by now."""

    def __init__(self) -> None:
        super().__init__("not written: this operator does not lead")


def _ignore(verb: str, path: str, code: str, seconds: float) -> None:
    """Nobody counts."""


class Api:
    """`async with await connect()`.

    `may_write` is asked before every call but GET. `record` is told of each call: verb, path, the status or "none", seconds.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        *,
        may_write: Callable[[], bool] = lambda: True,
        record: Callable[[str, str, str, float], None] = _ignore,
        pace: Pace | None = None,
    ) -> None:
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._client = client.ApiClient(configuration)
        self._may_write = may_write
        self._record = record
        self.pace = pace or Pace()
        self.host: str = configuration.host

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any] | None:
        """The answer's object, or None where there is no such object (404). Raises ClusterError."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        full = f"{path}?{urlencode(query)}" if query else path
        await self._wait_for_turn(method, path)
        prepared = await self._client.param_serialize(
            method, full, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        if method != "GET" and not self._may_write():
            raise NotLeading
        began, code = time.monotonic(), "none"
        try:
            response = await self._client.call_api(*prepared, _request_timeout=_TIMEOUT)
            code = str(response.status)
            text = await response.read()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.pace.failed(began)
            raise ClusterError(f"{method} {path}: {_words(error)}") from error
        finally:
            self._record(method, path, code, time.monotonic() - began)
        self._keep_pace(began, response.status, response.headers.get("Retry-After"))
        if response.status == 404:
            return None
        if not 200 <= response.status < 300:
            raise refusal(method, path, response.status, text, response.headers.get("Retry-After"))
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def _wait_for_turn(self, method: str, path: str) -> None:
        while (seconds := self.pace.wait_seconds()) > 0:
            if seconds > _PATIENCE:
                words = f"{method} {path}: not asked: the API server wants to be left alone for {seconds:.0f}s"
                raise ClusterError(words, retry_after=seconds)
            await asyncio.sleep(seconds + random.uniform(0.0, _SPREAD))

    def _keep_pace(self, began: float, status: int, retry_after: str | None) -> None:
        if status == 429:
            self.pace.told(_seconds(retry_after) or 1.0)
        elif status in _AWAY:
            self.pace.failed(began)
            self.pace.told(_seconds(retry_after))
        else:
            self.pace.succeeded()


async def connect(
    *,
    may_write: Callable[[], bool] = lambda: True,
    record: Callable[[str, str, str, float], None] = _ignore,
    pace: Pace | None = None,
) -> Api:
    """In a pod its service account; else KUBECONFIG or ~/.kube/config. Raises NoCluster."""
    configuration = client.Configuration()
    try:
        if _in_pod():
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise NoCluster(
            f"no cluster: not in a pod, and no usable kubeconfig at {config.KUBE_CONFIG_DEFAULT_LOCATION} (set KUBECONFIG): {error}"
        ) from error
    return Api(configuration, may_write=may_write, record=record, pace=pace)


def _in_pod() -> bool:
    return bool(os.environ.get(SERVICE_HOST_ENV_NAME)) and Path(SERVICE_TOKEN_FILENAME).exists()


def refusal(method: str, path: str, status: int, text: bytes, retry_after: str | None) -> ClusterError:
    """What the API server's answer means to the reconcile: its message, whether asking again can help, and when."""
    reason = ""
    try:
        answer = json.loads(text)
        message, reason = str(answer["message"]), answer.get("reason", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = text[:200].decode(errors="replace").strip()
    refused = status in _REFUSED or message.startswith(_UNTYPED)
    said = f"{method} {path}: {status}: {message}"
    return ClusterError(said, refused=refused, retry_after=_seconds(retry_after), exists=reason == "AlreadyExists")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdigit() else 0.0


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
