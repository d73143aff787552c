"""What a namespace's Services and EndpointSlices say the gateway is to serve. Pure: manifests in, a `RouteTable` out.

A Service whose annotation can't be read keeps the route that it had: a mistake takes nobody's deployment away. Used by
`cluster_watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.gateway import route
from pagemill_operator.gateway.route import (
    ROUTE_ANNOTATION,
    SERVICE_NAME_LABEL,
    InvalidRoute,
    Route,
    RouteTable,
    Target,
)

Manifest = Mapping[str, Any]

_LOG = logging.getLogger(__name__)


def table_of(services: Iterable[Manifest], slices: Iterable[Manifest], before: RouteTable) -> RouteTable:
    """`before`: the table that was made last."""
    ready: dict[str, set[str]] = {}
    for each in slices:
        labels = each["metadata"].get("labels") or {}
        ready.setdefault(labels.get(SERVICE_NAME_LABEL, ""), set()).update(_ready(each))
    table: dict[str, Target] = {}
    for service in services:
        found = _route(service, before)
        if found is not None:
            table[found.deployment] = Target(found, frozenset(ready.get(service["metadata"]["name"], ())))
    return table


def _route(service: Manifest, before: RouteTable) -> Route | None:
    metadata = service["metadata"]
    text = (metadata.get("annotations") or {}).get(ROUTE_ANNOTATION)
    if text is None:
        return None
    try:
        return route.of_json(text)
    except InvalidRoute as error:
        _LOG.error("Service %s: annotation %s: %s", metadata["name"], ROUTE_ANNOTATION, error)
    name = metadata["name"].removesuffix(route.REPLICAS_SUFFIX)
    return before[name].route if name in before else None


def _ready(found: Manifest) -> Iterator[str]:
    """Its addresses with ports. An endpoint that says nothing of its readiness is ready, by the API's word."""
    ports = [port.get("port") for port in found.get("ports") or () if port.get("protocol", "TCP") == "TCP"]
    port = next((port for port in ports if port), SERVING_PORT)
    if found.get("addressType", "IPv4") not in ("IPv4", "IPv6"):
        return
    for endpoint in found.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is not False:
            for address in endpoint.get("addresses") or ():
                yield f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
