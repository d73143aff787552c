"""A deployment's way through a Gateway: an HTTPRoute and, where an endpoint picker is named, the InferencePool that it picks from.

Pure. Without a picker the route leads to the Service: an InferencePool can't be without one. Called by `render_beside`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.spec_gateway import EndpointPicker, Gateway

ROUTE_API = "gateway.networking.k8s.io"
POOL_API = "inference.networking.k8s.io"


def routing(
    name: str, gateway: Gateway, service_port: int, selector: Mapping[str, str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(apiVersion, kind, spec); the pool first, so that the route never names what is not there yet."""
    if gateway.endpoint_picker is not None:
        yield f"{POOL_API}/v1", "InferencePool", _pool(gateway.endpoint_picker, selector)
        backend: dict[str, Any] = {"group": POOL_API, "kind": "InferencePool", "name": name}
    else:
        backend = {"group": "", "kind": "Service", "name": name, "port": service_port}
    yield f"{ROUTE_API}/v1", "HTTPRoute", _route(gateway, backend)


def _pool(picker: EndpointPicker, selector: Mapping[str, str]) -> dict[str, Any]:
    """Pickers read our metrics under vLLM's names, which is their default: nothing else has to be said."""
    return {
        "selector": {"matchLabels": dict(selector)},
        "targetPorts": [{"number": SERVING_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": picker.failure_mode,
        },
    }


def _route(gateway: Gateway, backend: Mapping[str, Any]) -> dict[str, Any]:
    parent = gateway.parent_ref
    optional = {"namespace": parent.namespace, "sectionName": parent.section_name}
    reference = {"group": ROUTE_API, "kind": "Gateway", "name": parent.name}
    reference |= {field: value for field, value in optional.items() if value is not None}
    matches = [{"path": {"type": "PathPrefix", "value": "/"}}]
    route: dict[str, Any] = {
        "parentRefs": [reference],
        "rules": [{"matches": matches, "backendRefs": [{**backend, "weight": 1}]}],
    }
    return route | ({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {})
