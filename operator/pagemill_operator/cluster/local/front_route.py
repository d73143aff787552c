"""What a front is told of its deployment: the route that a cluster's gateway would be told, but for who is waited for.

Pure. Only one that may sleep is: on one machine a replica that is missing else is one that failed or loads, and whoever started it
rather sees that at once. Used by `cluster`.
"""

from __future__ import annotations

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.gateway.route import Route
from pagemill_operator.resource import read
from pagemill_operator.serve_flags import served_names
from pagemill_operator.way import wake_timeout


def front_route(name: str, port: int, manifest: Manifest | None) -> Route:
    """`manifest`: the LLMDeployment; without one, or with one that can't be read, nobody waits."""
    nobody_waits = Route(name, port, wake_timeout_seconds=0)
    if manifest is None:
        return nobody_waits
    try:
        resource = read(manifest)
    except InvalidManifest:
        return nobody_waits
    wake = wake_timeout(resource.spec)
    return Route(
        deployment=name,
        port=port,
        routing=resource.spec.routing,
        wake_timeout_seconds=0 if wake is None else wake,
        sleeps=wake is not None,
        models=served_names(resource),
        block_size=resource.spec.engine.block_size or 16,
    )
