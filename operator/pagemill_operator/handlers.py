"""Every trigger of the operator: what of the cluster is watched, and that an event feeds the cache and queues a key. Nothing else.

Only `on.event`, `on.login`, `on.startup` and `on.probe`: kopf's create, update and delete handlers, timers and daemons would
write annotations and finalizers on the user's objects (a test reads this file for them). Registered by `__main__`.
"""

from __future__ import annotations

from typing import Any

import kopf

from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.kinds import FOLLOWED, RESOURCE, ApiKind
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.queue import KeyQueue
from pagemill_operator.worker import Worker

_SERVER_TIMEOUT = (
    240  # seconds of one watch (the API server takes whole ones); then it is asked for anew, lest it be dead unnoticed
)
_CLIENT_TIMEOUT = 270


def register(cache: ObjectCache, queue: KeyQueue, worker: Worker) -> kopf.OperatorRegistry:
    """A registry with all handlers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True  # or it would list namespaces and CRDs, which the Role need not allow
        settings.watching.server_timeout = _SERVER_TIMEOUT
        settings.watching.client_timeout = _CLIENT_TIMEOUT
        settings.networking.request_timeout = 30.0
        for kind in FOLLOWED:
            if kind is not RESOURCE:
                settings.watching.label_selectors[_selector(kind)] = DEPLOYMENT_LABEL

    @kopf.on.probe(registry=registry, id="worker")
    def alive(**_: Any) -> str:
        stuck = worker.stuck()
        if stuck is not None:
            raise kopf.PermanentError(stuck)
        return "alive"

    for kind in FOLLOWED:
        kopf.on.event(*_selector(kind), registry=registry, id=kind.plural)(_follow(kind, cache, queue))
    return registry


def _selector(kind: ApiKind) -> tuple[str, str, str]:
    return (kind.group, kind.version, kind.plural)


def _follow(kind: ApiKind, cache: ObjectCache, queue: KeyQueue) -> Any:
    async def follow(event: Any, **_: Any) -> None:
        found = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
        key = cache.remove(found) if event["type"] == "DELETED" else cache.put(found)
        if key is not None:
            queue.add(key)

    return follow
