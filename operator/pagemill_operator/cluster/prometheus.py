"""Instant queries to Prometheus' HTTP API, whoever implements it: series, or one line that a person can act on.

Redirects are not followed: they would carry the token to wherever they lead. Knows nothing of what is asked. Used by `scaling`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from pagemill_operator.errors import PrometheusError
from pagemill_operator.samples import Series

TIMEOUT = 5.0  # seconds
_PATH = "api/v1/query"
_BODY_LIMIT = 4 * 1024 * 1024  # bytes; a series takes some 300
_QUOTED = 300  # characters of what Prometheus says


async def answers(
    session: aiohttp.ClientSession, url: str, queries: Mapping[str, str], token: str | None = None
) -> dict[str, list[Series] | PrometheusError]:
    """All of them at once, each with its series or with why there are none. Never raises."""

    async def answer(promql: str) -> list[Series] | PrometheusError:
        try:
            return await query(session, url, promql, token)
        except PrometheusError as error:
            return error

    return dict(zip(queries, await asyncio.gather(*map(answer, queries.values())), strict=True))


async def query(
    session: aiohttp.ClientSession, url: str, promql: str, token: str | None = None, seconds: float = TIMEOUT
) -> list[Series]:
    """The vector that `promql` gives now. `url` may have a path, to which the API's is appended. Raises PrometheusError."""
    try:
        base = URL(url)
        if base.scheme not in ("http", "https") or not base.host:
            raise PrometheusError(f'prometheus.url "{url[:_QUOTED]}" is no http or https URL')
        target = (base / _PATH).with_query({"query": promql})
    except ValueError:
        raise PrometheusError(f'prometheus.url "{url[:_QUOTED]}" is no URL') from None
    where = str(base.with_user(None).with_query(None).with_fragment(None))  # without what may be secret
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        async with (
            asyncio.timeout(seconds),
            session.get(target, headers=headers, allow_redirects=False) as response,
        ):
            status, location = response.status, response.headers.get("Location", "")
            body = await _body(response)
    except TimeoutError:
        raise PrometheusError(f"Prometheus at {where} did not answer within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a header that can't be
        raise PrometheusError(f"Prometheus at {where} can't be reached: {_line(error)}") from None
    _check_status(where, status, location, body, token)
    return _vector(where, body)


async def _body(response: aiohttp.ClientResponse) -> Mapping[str, Any] | None:
    """The JSON object that came; None: something else, or more than anyone asked for."""
    text = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        text += chunk
        if len(text) > _BODY_LIMIT:
            return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _check_status(where: str, status: int, location: str, body: Mapping[str, Any] | None, token: str | None) -> None:
    if status == 200:
        return
    said = f": {_line(body['error'])}" if body is not None and "error" in body else ""
    if status in (401, 403):
        what = (
            "needs a token: set prometheus.bearerTokenSecretRef"
            if token is None
            else "refuses the token of prometheus.bearerTokenSecretRef"
        )
        raise PrometheusError(f"Prometheus at {where} {what} ({status}{said})")
    if 300 <= status < 400:
        leads = _line(location.partition("?")[0]) or "nowhere"
        raise PrometheusError(
            f"Prometheus at {where} redirects to {leads} ({status}): set prometheus.url to where it is"
        )
    if status == 404 and not said:
        raise PrometheusError(
            f"there is no Prometheus at {where} (404): prometheus.url must be what comes before /{_PATH}"
        )
    raise PrometheusError(f"Prometheus at {where} answers {status}{said}")


def _vector(where: str, body: Mapping[str, Any] | None) -> list[Series]:
    if body is None:
        raise PrometheusError(f"what answers at {where} is no Prometheus: set prometheus.url to its base URL")
    if warnings := body.get("warnings"):  # a store behind it did not answer: some series may be missing
        raise PrometheusError(f"the answer of Prometheus at {where} may be incomplete: {_line(warnings)}")
    try:
        data = body["data"]
        if body["status"] != "success" or data["resultType"] != "vector":
            raise PrometheusError(f"Prometheus at {where} answers with no vector: {_line(body.get('error') or data)}")
        return [_series(found) for found in data["result"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise PrometheusError(f"what answers at {where} speaks no API of Prometheus that is known here") from None


def _series(found: Mapping[str, Any]) -> Series:
    time, value = found["value"]
    labels = {str(name): str(text) for name, text in found["metric"].items()}
    return Series(labels, float(value), float(time))


def _line(said: object) -> str:
    text = " ".join(
        (said if isinstance(said, str) else json.dumps(said) if isinstance(said, list | dict) else str(said)).split()
    )
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"
