"""Bearer tokens for Prometheus from Secrets that specs name: the one kind of Secret that the operator reads, where it may.

The chart gives that right with `prometheusTokens: true` only; without it, the refusal says so. A token is kept for a minute: a
renewed one is soon taken over. Used by `kubernetes`.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import Final

from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.errors import PrometheusError
from pagemill_operator.spec_scaling import TokenSecret

KEPT_SECONDS: Final = 60.0


class TokenSecrets:
    """What was read, by namespace and reference."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._kept: dict[tuple[str, str, str], tuple[str, float]] = {}  # and until when

    async def read(self, namespace: str, reference: TokenSecret) -> str:
        """Raises PrometheusError: what is wrong with the Secret, or with our rights to it."""
        place = (namespace, reference.name, reference.key)
        token, until = self._kept.get(place, ("", 0.0))
        if time.monotonic() >= until:
            token = await self._fetch(namespace, reference)
            self._kept[place] = token, time.monotonic() + KEPT_SECONDS
        return token

    async def _fetch(self, namespace: str, reference: TokenSecret) -> str:
        name = reference.name
        try:
            secret = await self._api.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        except ClusterError as error:
            if not error.refused:
                raise PrometheusError(f"the Secret {name} with Prometheus' token can't be read: {error}") from None
            advice = "set prometheusTokens: true in the chart's values, or give it the verb get by a Role"
            raise PrometheusError(
                f"the operator may not read the Secret {name} with Prometheus' token: {advice}"
            ) from None
        encoded = ((secret or {}).get("data") or {}).get(reference.key)
        if encoded is None:
            raise PrometheusError(f"there is no Secret {name} with the key {reference.key}, Prometheus' token")
        try:
            return base64.b64decode(encoded, validate=True).decode("ascii").strip()
        except (binascii.Error, UnicodeDecodeError):
            raise PrometheusError(f"the key {reference.key} of the Secret {name} is no token") from None
