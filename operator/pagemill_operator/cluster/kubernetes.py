"""A real Kubernetes behind the interface that the reconcile knows: reads from the cache, writes through the API.

Owns paths, server-side apply and the lists that fill the cache; `handlers` keeps it fresh with events. A write's answer goes
into the cache at once, so that the next reconcile does not repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.cluster import http_probe
from pagemill_operator.cluster.api import APPLY, MERGE, Api
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import ClusterError, Key, Manifest, NameTaken, ObjectRef, Probe
from pagemill_operator.cluster.kinds import BY_KIND, EVENT, FOLLOWED, RESOURCE, ApiKind
from pagemill_operator.cluster.merge_patch import merge_patch
from pagemill_operator.cluster.ours import is_ours
from pagemill_operator.labels import DEPLOYMENT_LABEL, FIELD_MANAGER

_PROBE_SECONDS = 2.0
_PAGE = 500  # objects a list call


class KubernetesCluster:
    """For the given namespaces, or for all where there are none. `session` asks the pods."""

    def __init__(self, api: Api, cache: ObjectCache, session: aiohttp.ClientSession, namespaces: Sequence[str]) -> None:
        self._api = api
        self._cache = cache
        self._session = session
        self._namespaces = tuple(namespaces) or (None,)

    async def resource(self, key: Key) -> Manifest | None:
        return self._cache.resource(key)

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        if kind == EVENT.kind:
            return await self._events(key)
        return self._cache.children(key, kind)

    async def apply(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        path = _path(BY_KIND[manifest["kind"]], metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._leave_to_others(manifest)
        try:
            applied = await self._api.call("PATCH", path, query=query, body=manifest, content_type=APPLY)
        except ClusterError as error:
            if not error.refused or not await self._took_lists(path, manifest):
                raise
            applied = await self._api.call("PATCH", path, query=query, body=manifest, content_type=APPLY)
        if applied is not None:
            self._cache.put(applied)

    async def _took_lists(self, path: str, manifest: Manifest) -> bool:
        """Whether a merge patch, which takes lists whole, was accepted where an apply is refused.

        An apply merges lists by a key. Where a hand has changed the key (a port's number) ours would stand beside theirs, with the
        same name, for good.
        """
        try:
            query, body = {"fieldManager": FIELD_MANAGER}, {"spec": manifest.get("spec", {})}
            return await self._api.call("PATCH", path, query=query, body=body, content_type=MERGE) is not None
        except ClusterError:
            return False

    async def _leave_to_others(self, manifest: Manifest) -> None:
        """Raise where the name is taken by what is not ours: a forced apply would take it over, and delete it with the owner."""
        kind, metadata = BY_KIND[manifest["kind"]], manifest["metadata"]
        known = self._cache.children(Key(metadata["namespace"], metadata["labels"][DEPLOYMENT_LABEL]), kind.kind)
        if any(found["metadata"]["name"] == metadata["name"] and is_ours(found, manifest) for found in known):
            return
        query = {"fieldSelector": f"metadata.name={metadata['name']}"}  # a list: the Role gives no get
        page = await self._api.call("GET", _path(kind, metadata["namespace"]), query=query)
        if any(not is_ours(found, manifest) for found in (page or {}).get("items", ())):
            raise NameTaken

    async def delete(self, ref: ObjectRef) -> None:
        path = _path(BY_KIND[ref.kind], ref.namespace, ref.name)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        await self._api.call("DELETE", path, body=options)

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        found = self._cache.resource(key)
        patch = merge_patch((found or {}).get("status") or {}, status)
        if found is None or not patch:
            return
        path = _path(RESOURCE, key.namespace, key.name) + "/status"
        query = {"fieldManager": FIELD_MANAGER}
        patched = await self._api.call("PATCH", path, query=query, body={"status": patch}, content_type=MERGE)
        if patched is not None:
            self._cache.put(patched)

    async def probe(self, pod: Manifest, path: str) -> Probe:
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return http_probe.NO_ANSWER
        host = f"[{address}]" if ":" in address else address
        return await http_probe.get(self._session, f"http://{host}:{SERVING_PORT}{path}", _PROBE_SECONDS)

    async def refresh(self) -> tuple[Key, ...]:
        """List everything into the cache: at the start, and at each resync for what events did not say. Returns all keys."""
        for kind in FOLLOWED:
            before = self._cache.identities(kind.kind)
            listed = [found for namespace in self._namespaces for found in await self._list(kind, namespace)]
            self._cache.replace(kind.kind, listed, before)
        return self._cache.keys()

    async def serves_resource(self) -> bool:
        """Whether the API knows LLMDeployments, that is, whether the CRD is there."""
        found = await self._api.call("GET", RESOURCE.prefix)
        return found is not None and any(entry["name"] == RESOURCE.plural for entry in found["resources"])

    async def _list(self, kind: ApiKind, namespace: str | None) -> list[dict[str, Any]]:
        query = {"limit": str(_PAGE)} if kind is RESOURCE else {"limit": str(_PAGE), "labelSelector": DEPLOYMENT_LABEL}
        path = _path(kind, namespace)
        items: list[dict[str, Any]] = []
        while True:
            page = await self._api.call("GET", path, query=query)
            if page is None:
                return items
            named = {"apiVersion": kind.api_version, "kind": kind.kind}  # a list's items leave these out
            items += [{**named, **item} for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return items
            query = {**query, "continue": token}

    async def _events(self, key: Key) -> tuple[Manifest, ...]:
        """Warnings about pods that do not start. Asked for only then: a watch would stream every event of the namespace."""
        found: list[dict[str, Any]] = []
        for pod in self._cache.children(key, "Pod"):
            if not _is_creating(pod):
                continue
            selector = f"involvedObject.uid={pod['metadata']['uid']},type=Warning"
            path = _path(EVENT, key.namespace)
            page = await self._api.call("GET", path, query={"fieldSelector": selector, "limit": "50"})
            found += (page or {}).get("items", ())
        return tuple(found)


def _path(kind: ApiKind, namespace: str | None, name: str | None = None) -> str:
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{kind.prefix}{scope}/{kind.plural}" + (f"/{name}" if name is not None else "")


def _is_creating(pod: Manifest) -> bool:
    """The pod has a node but its container waits for a volume, a Secret or the like: only events say for what."""
    status = pod.get("status") or {}
    waiting = [(entry.get("state") or {}).get("waiting") for entry in status.get("containerStatuses") or ()]
    return any(state and state.get("reason") == "ContainerCreating" for state in waiting)
