"""Which deployments of a namespace need its gateway, what each of them brings along, and on which port it listens for each.

Pure. A deployment that no longer needs it stays a member until its Service and its route have left it, and so does one whose spec
can't be read just now: what runs is left as it is. Called by `namespace_gateway`; `lead` reads the ports.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.gateway.route import ROUTE_ANNOTATION, InvalidRoute, of_json
from pagemill_operator.labels import GATEWAY_NAME, GATEWAY_PORTS_ANNOTATION, NAME_LABEL, REFUSED_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.resource import Resource, deleting, read
from pagemill_operator.supported import unsupported
from pagemill_operator.way import needs_gateway

FIRST_PORT = 20000
PORTS = 10000  # from there on
KEYS_VOLUME = "keys-"  # and the deployment's name


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One deployment behind the gateway, and what the gateway's own objects take from it."""

    name: str
    uid: str
    keys_secret: str | None = None  # of its API keys
    drain_seconds: int = 0  # until its longest stream is cut
    pull_secrets: tuple[str, ...] = ()
    pod_monitor: bool = False
    network_policy: bool = False


def members(
    resources: Iterable[Manifest], services: Mapping[str, Iterable[Manifest]], live: Manifest | None
) -> tuple[Member, ...]:
    """`services`: each deployment's, by its name; `live`: the gateway's Deployment."""
    return tuple(sorted(_members(resources, services, live)))


def _members(
    resources: Iterable[Manifest], services: Mapping[str, Iterable[Manifest]], live: Manifest | None
) -> Iterator[Member]:
    for manifest in resources:
        name = manifest["metadata"]["name"]
        routed = any(is_routed(service) for service in services.get(name, ()))
        if deleting(manifest) or not (routed or may_need(manifest)):
            continue
        resource = _accepted(manifest)
        if resource is None and routed:
            yield _as_it_was(manifest, live)
        elif resource is not None and (routed or needs_gateway(resource.spec)):
            yield _of(resource)


def is_routed(service: Manifest) -> bool:
    """Whether a Service leads to the gateway, or tells it of a route."""
    return ROUTE_ANNOTATION in _annotations(service) or leads_to_gateway(service)


def leads_to_gateway(service: Manifest) -> bool:
    """By its selector."""
    selector: Mapping[str, str] = service["spec"].get("selector") or {}
    return selector.get(NAME_LABEL) == GATEWAY_NAME


def may_need(manifest: Manifest) -> bool:
    """At a glance, so that a thousand that don't need one cost nothing."""
    spec = manifest.get("spec") or {}
    return bool(spec.get("autoscaling")) or spec.get("routing", "service") != "service"


def _accepted(manifest: Manifest) -> Resource | None:
    try:
        resource = read(manifest)
    except InvalidManifest:
        return None
    return None if unsupported(resource.spec) else resource


def _of(resource: Resource) -> Member:
    spec = resource.spec
    return Member(
        name=resource.owner.key.name,
        uid=resource.owner.uid,
        keys_secret=spec.api_keys_secret_ref.name if spec.api_keys_secret_ref is not None else None,
        drain_seconds=spec.rollout.lame_duck_seconds + spec.rollout.drain_timeout_seconds,
        pull_secrets=tuple(secret.name for secret in spec.image_pull_secrets),
        pod_monitor=spec.monitoring.pod_monitor,
        network_policy=spec.network_policy.enabled,
    )


def _as_it_was(manifest: Manifest, live: Manifest | None) -> Member:
    """Of a deployment whose spec can't be read: its keys go on being checked."""
    metadata, volumes = manifest["metadata"], [] if live is None else live["spec"]["template"]["spec"]["volumes"]
    secrets = {volume["name"]: (volume.get("secret") or {}).get("secretName") for volume in volumes}
    return Member(metadata["name"], metadata.get("uid", ""), keys_secret=secrets.get(KEYS_VOLUME + metadata["name"]))


def allot(names: Collection[str], held: Mapping[str, int]) -> dict[str, int]:
    """A port for each name: the one that it holds, else the first free one from its name's own place on, around the end."""
    given: dict[str, int] = {}
    for name in sorted(names):
        if (port := held.get(name)) is not None and port not in given.values():
            given[name] = port
    for name in sorted(set(names) - set(given)):
        place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        taken = set(given.values())
        given[name] = next(port for step in range(PORTS) if (port := FIRST_PORT + (place + step) % PORTS) not in taken)
    return given


def routed_ports(services: Iterable[Manifest]) -> dict[str, int]:
    """By deployment, as their routes tell of them: where the gateway's Deployment was lost, they stay where they were."""
    texts = (_annotations(service).get(ROUTE_ANNOTATION) for service in services)
    found = dict[str, int]()
    for text in texts:
        with contextlib.suppress(InvalidRoute):
            if text is not None:
                route = of_json(text)
                found[route.deployment] = route.port
    return found


def held_ports(gateway: Manifest | None) -> dict[str, int]:
    """By deployment, as the gateway's Deployment tells of them; whatever else a hand wrote there is none."""
    text = None if gateway is None else _annotations(gateway).get(GATEWAY_PORTS_ANNOTATION)
    try:
        said = json.loads(text or "{}")
    except ValueError:
        return {}
    last = FIRST_PORT + PORTS
    found = said.items() if isinstance(said, dict) else ()
    return {name: port for name, port in found if type(port) is int and FIRST_PORT <= port < last}


def said_refused(gateway: World) -> str:
    """What of a gateway the cluster has refused at the last look; empty where nothing."""
    account = gateway.child("ServiceAccount")
    return "" if account is None else str(_annotations(account).get(REFUSED_ANNOTATION, ""))


def _annotations(manifest: Manifest) -> Mapping[str, Any]:
    return manifest["metadata"].get("annotations") or {}
