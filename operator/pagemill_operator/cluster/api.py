"""One Kubernetes API call: over the official client's asyncio side, with a time limit, and with errors in our own words.

Owns the connection and the translation of what the server refuses. Knows no kinds and no cache. Used by `kubernetes` only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME

from pagemill_operator.cluster.interface import ClusterError

APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
_TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
_REFUSED = (400, 403, 405, 422)  # asking again can't help
_UNTYPED = "failed to create typed patch object"  # server-side apply of a field that Kubernetes lacks: a 500, and refused for good


class NoCluster(Exception):
    """There is no configuration to reach a cluster with; the message says what was looked for."""


class Api:
    """`async with await connect()`."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._client = client.ApiClient(configuration)
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
        try:
            prepared = await self._client.param_serialize(
                method, full, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await self._client.call_api(*prepared, _request_timeout=_TIMEOUT)
            text = await response.read()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"{method} {path}: {_words(error)}") from error
        if response.status == 404:
            return None
        if not 200 <= response.status < 300:
            raise refusal(method, path, response.status, text, response.headers.get("Retry-After"))
        answer: dict[str, Any] = json.loads(text)
        return answer


async def connect() -> Api:
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
    return Api(configuration)


def _in_pod() -> bool:
    return bool(os.environ.get(SERVICE_HOST_ENV_NAME)) and Path(SERVICE_TOKEN_FILENAME).exists()


def refusal(method: str, path: str, status: int, text: bytes, retry_after: str | None) -> ClusterError:
    """What the API server's answer means to the reconcile: its message, whether asking again can help, and when."""
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:200].decode(errors="replace").strip()
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
    refused = status in _REFUSED or message.startswith(_UNTYPED)
    return ClusterError(f"{method} {path}: {status}: {message}", refused=refused, retry_after=seconds)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
