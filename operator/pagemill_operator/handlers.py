"""Every trigger of the operator: what of the cluster is watched, and that an event feeds the cache and queues a key. Nothing else.

Only `on.event`, `on.login`, `on.startup` and `on.probe`: kopf's create, update and delete handlers, timers and daemons would
write annotations and finalizers on the user's objects (a test reads this file for them). Registered by `__main__`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import Key
from pagemill_operator.cluster.kinds import FOLLOWED, RESOURCE, ApiKind
from pagemill_operator.gateway_key import gateway_key, is_gateway
from pagemill_operator.gateway_members import may_need
from pagemill_operator.labels import DEPLOYMENT_LABEL, KIND
from pagemill_operator.queue import KeyQueue

_SERVER_TIMEOUT = (
    240  # seconds of one watch (the API server takes whole ones); then it is asked for anew, lest it be dead unnoticed
)
_CLIENT_TIMEOUT = 270
_BACKOFFS = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)  # seconds; the last one for good


class Backoffs:
    """kopf's pauses after an API error, without an end: where they end, it lets the watch die, and with it the whole operator."""

    def __iter__(self) -> Iterator[float]:
        for attempt in itertools.count():
            yield _BACKOFFS[min(attempt, len(_BACKOFFS) - 1)] * random.uniform(0.8, 1.2)


def register(
    cache: ObjectCache,
    queue: KeyQueue,
    *,
    problem: Callable[[], str | None],
    heard: Callable[[str, str | None], None] = lambda kind, event: None,
) -> kopf.OperatorRegistry:
    """A registry with all handlers. `problem`: why the process should be ended, or None. `heard` is told of each event: its kind
    and its type, which is None for those that a list at the beginning of a watch is made into."""
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
        settings.networking.connect_timeout = 10.0
        settings.networking.error_backoffs = Backoffs()
        settings.networking.enforce_retry_after = True
        for kind in FOLLOWED:
            if kind is not RESOURCE:
                settings.watching.label_selectors[_selector(kind)] = DEPLOYMENT_LABEL

    @kopf.on.probe(registry=registry, id="operator")
    def alive(**_: Any) -> str:
        trouble = problem()
        if trouble is not None:
            raise kopf.PermanentError(trouble)
        return "alive"

    for kind in FOLLOWED:
        kopf.on.event(*_selector(kind), registry=registry, id=kind.plural)(_follow(kind, cache, queue, heard))
    return registry


def _selector(kind: ApiKind) -> tuple[str, str, str]:
    return (kind.group, kind.version, kind.plural)


def _concerned(kind: ApiKind, key: Key, cache: ObjectCache) -> Iterator[Key]:
    """Who else looks at what has changed: a namespace's gateway at its deployments and their Services, they at the gateway."""
    if is_gateway(key):
        for resource in filter(may_need, cache.resources_in(key.namespace)):
            yield Key(key.namespace, resource["metadata"]["name"])
    elif kind.kind in (KIND, "Service"):
        yield gateway_key(key.namespace)


def _follow(kind: ApiKind, cache: ObjectCache, queue: KeyQueue, heard: Callable[[str, str | None], None]) -> Any:
    async def follow(event: Any, **_: Any) -> None:
        found = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
        key = cache.remove(found) if event["type"] == "DELETED" else cache.put(found, heard=True)
        heard(kind.kind, event["type"])
        if key is not None:
            queue.add(key)
            for other in _concerned(kind, key, cache):
                queue.add(other)

    return follow
