"""What the gateway is told about one deployment: a frozen `Route`, and the JSON of it that a Service's annotation carries.

Pure. The operator writes it (`to_json`), the gateway reads it (`of_json`); which replicas there are is not in it, but in the
EndpointSlices of the same Service. Fields that a reader does not know are ignored, so that a newer operator may say more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

ROUTE_ANNOTATION = "pagemill.dev/route"  # on the headless Service `<name>-replicas`
SERVICE_NAME_LABEL = "kubernetes.io/service-name"  # on an EndpointSlice: its Service's name
REPLICAS_SUFFIX = "-replicas"
GATEWAY_ADMIN_PORT = 9404  # /metrics, /healthz, /readyz
KEYS_FOLDER = "/etc/pagemill/keys"  # a folder a deployment with keys, its files as the server reads them

Routing = Literal["service", "leastLoad", "prefix"]

_DEPLOYMENT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class InvalidRoute(ValueError):
    """A route that can't be; the message names the field."""


@dataclass(frozen=True, slots=True)
class Route:
    """One deployment as the gateway serves it. Filled by the operator's render, or by the local cluster."""

    deployment: str  # its name; the gateway's namespace is its own
    port: int  # where the gateway listens for it
    routing: Routing = "leastLoad"  # `service`: here only to be woken, spread as leastLoad does
    wake_timeout_seconds: int = 300  # how long a request waits for a replica
    sleeps: bool = False  # to be without a replica is well: what only asks whether all is well is told so
    models: tuple[str, ...] = ()  # the served names, for /v1/models while it sleeps
    keys: bool = False  # API keys are asked for
    lame_duck_seconds: int = 0  # after SIGTERM: served on, with `Connection: close`
    drain_timeout_seconds: int = 600  # and then until what runs is cut
    block_size: int = 16  # tokens a KV block, which `prefix` counts in

    def to_json(self) -> str:
        """One line, the same for the same route."""
        return json.dumps({name: getattr(self, field) for name, (field, _) in _FIELDS.items()}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Target:
    """A route and who may answer it now. Filled by whoever knows: the cluster's watch, or one machine's cluster."""

    route: Route
    replicas: frozenset[str]  # "host:port" of those that are ready


RouteTable = Mapping[str, Target]  # by the deployment's name


def of_json(text: str) -> Route:
    """Raises InvalidRoute. What has a default may be left out; nothing is guessed of what is there and wrong."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRoute("it is not JSON") from None
    if not isinstance(document, Mapping):
        raise InvalidRoute("it is not a JSON object")
    for name in ("deployment", "port"):
        if name not in document:
            raise InvalidRoute(f"{name} is missing")
    given: dict[str, Any] = {
        field: read(name, document[name]) for name, (field, read) in _FIELDS.items() if name in document
    }
    return Route(**given)


def _name(name: str, value: object) -> str:
    if isinstance(value, str) and _DEPLOYMENT.fullmatch(value):  # it names a folder of keys, too
        return value
    raise InvalidRoute(f"{name} is no name of an object")


def _port(name: str, value: object) -> int:
    port = _whole(name, value)
    if 0 < port < 65536 and port != GATEWAY_ADMIN_PORT:
        return port
    raise InvalidRoute(f"{name} {port} can't be a deployment's")


def _whole(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidRoute(f"{name} is no whole number from 0 up")


def _positive(name: str, value: object) -> int:
    if number := _whole(name, value):
        return number
    raise InvalidRoute(f"{name} is 0")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidRoute(f"{name} is neither true nor false")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise InvalidRoute(f"{name} is no list of texts")


def _routing(name: str, value: object) -> Routing:
    for routing in get_args(Routing):
        if value == routing:
            return cast(Routing, routing)
    raise InvalidRoute(f"{name} is none of {', '.join(get_args(Routing))}")


_FIELDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "deployment": ("deployment", _name),
    "port": ("port", _port),
    "routing": ("routing", _routing),
    "wakeTimeoutSeconds": ("wake_timeout_seconds", _positive),
    "sleeps": ("sleeps", _flag),
    "models": ("models", _texts),
    "keys": ("keys", _flag),
    "lameDuckSeconds": ("lame_duck_seconds", _whole),
    "drainTimeoutSeconds": ("drain_timeout_seconds", _whole),
    "blockSize": ("block_size", _positive),
}
