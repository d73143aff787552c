"""A real Kubernetes behind the interface that the reconcile knows: reads from the cache, writes through the API.

Owns paths, server-side apply and the lists that fill the cache; `handlers` keeps it fresh with events. A write's answer goes
into the cache at once, so that the next reconcile does not repeat it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from pagemill.endpoints import MANAGEMENT_PORT, METRICS_PATH, SERVING_PORT
from pagemill_operator.cluster import http_probe
from pagemill_operator.cluster.api import APPLY, MERGE, Api
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.held import held_in_all
from pagemill_operator.cluster.interface import ClusterError, Key, Manifest, NameTaken, NoSuchKind, ObjectRef, Probe
from pagemill_operator.cluster.kinds import BY_KIND, EVENT, FOLLOWED, LISTED, NODE, RESOURCE, SECRET, ApiKind
from pagemill_operator.cluster.merge_patch import merge_patch
from pagemill_operator.cluster.ours import is_ours
from pagemill_operator.cluster.prometheus import answers
from pagemill_operator.cluster.token_secrets import TokenSecrets
from pagemill_operator.ending import was_stopped
from pagemill_operator.errors import PrometheusError
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT
from pagemill_operator.gateway_key import gateway_key
from pagemill_operator.labels import DEPLOYMENT_LABEL, FIELD_MANAGER
from pagemill_operator.management_token import management_token
from pagemill_operator.samples import Answer
from pagemill_operator.spec_scaling import Prometheus

_PROBE_SECONDS = 2.0
_PAGE = 500  # objects a list call
_NODES_SECONDS = 30.0


class KubernetesCluster:
    """For the given namespaces, or for all where there are none. `session` asks the pods."""

    def __init__(
        self,
        api: Api,
        cache: ObjectCache,
        session: aiohttp.ClientSession,
        namespaces: Sequence[str],
    ) -> None:
        self._api = api
        self._cache = cache
        self._session = session
        self._namespaces = tuple(namespaces) or (None,)
        self._management_key = b""
        self._tokens = TokenSecrets(api)
        self._nodes: tuple[Manifest, ...] = ()
        self._nodes_until = 0.0

    def manage_by(self, operator_key: bytes) -> None:
        """What the tokens of the pods' management ports are made of."""
        self._management_key = operator_key

    async def resource(self, key: Key) -> Manifest | None:
        return self._cache.resource(key)

    async def resources(self, namespace: str) -> tuple[Manifest, ...]:
        return self._cache.resources_in(namespace)

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        if kind == EVENT.kind:
            return await self._events(key)
        return self._cache.children(key, kind)

    async def nodes(self) -> tuple[Manifest, ...]:
        """Asked for at most twice a minute: a watch would bring every heartbeat of every node."""
        if self._namespaces == (None,) and time.monotonic() >= self._nodes_until:
            page = await self._api.call("GET", _path(NODE, None))
            self._nodes, self._nodes_until = tuple((page or {}).get("items", ())), time.monotonic() + _NODES_SECONDS
        return self._nodes

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
        if applied is None:  # a 404: there is no such namespace, or no such kind
            raise NoSuchKind(manifest["kind"], manifest["apiVersion"])
        if BY_KIND[manifest["kind"]] is not SECRET:
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
        if kind is SECRET:  # which can't be read; nobody else has use for a name that ends like ours
            return
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
        if BY_KIND[ref.kind].listed:  # no event tells that it is gone, and it would be deleted at each look
            self._cache.forget(ref)

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

    async def annotate(self, pod: Manifest, annotations: Mapping[str, str | None]) -> None:
        metadata = pod["metadata"]
        path = _path(BY_KIND["Pod"], metadata["namespace"], metadata["name"])
        body = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}  # the uid: this pod, or none
        patched = await self._api.call(
            "PATCH", path, query={"fieldManager": FIELD_MANAGER}, body=body, content_type=MERGE
        )
        if patched is not None:
            self._cache.put({"apiVersion": "v1", "kind": "Pod", **patched})

    async def post_event(self, event: Manifest) -> None:
        try:
            await self._api.call("POST", _path(EVENT, event["metadata"]["namespace"]), body=event)
        except ClusterError as error:
            if not error.exists:
                raise

    async def probe(self, pod: Manifest, path: str, port: int = SERVING_PORT) -> Probe:
        url = _url(pod, port, path)
        return http_probe.NO_ANSWER if url is None else await http_probe.get(self._session, url, _PROBE_SECONDS)

    async def metrics(self, pod: Manifest) -> str | None:
        return await self._text(pod, SERVING_PORT)

    async def held(self, key: Key) -> int | None:
        gateways = self._cache.children(gateway_key(key.namespace), "Pod")
        texts = await asyncio.gather(*(self._text(pod, GATEWAY_ADMIN_PORT) for pod in gateways))
        return held_in_all(key.name, zip(gateways, texts, strict=True))

    async def query(self, namespace: str, prometheus: Prometheus, queries: Mapping[str, str]) -> Mapping[str, Answer]:
        reference = prometheus.bearer_token_secret_ref
        try:
            token = None if reference is None else await self._tokens.read(namespace, reference)
        except PrometheusError as error:
            return dict.fromkeys(queries, error)
        return await answers(self._session, prometheus.url, queries, token)

    async def _text(self, pod: Manifest, port: int) -> str | None:
        url = _url(pod, port, METRICS_PATH)
        return None if url is None else await http_probe.text(self._session, url, _PROBE_SECONDS)

    async def manage(self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None = None) -> Probe:
        url, labels = _url(pod, MANAGEMENT_PORT, path), pod["metadata"].get("labels") or {}
        if url is None or DEPLOYMENT_LABEL not in labels:
            return http_probe.NO_ANSWER
        token = management_token(self._management_key, Key(pod["metadata"]["namespace"], labels[DEPLOYMENT_LABEL]))
        return await http_probe.ask(self._session, method, url, _PROBE_SECONDS, token=token, body=body)

    async def refresh(self) -> tuple[Key, ...]:
        """List everything into the cache: at the start, and at each resync for what events did not say. Returns all keys."""
        for kind in (*FOLLOWED, *LISTED):
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
            try:
                page = await self._api.call("GET", path, query=query)
            except ClusterError:
                if "continue" not in query:
                    raise
                # 410: the versions that the pages are of have been compacted meanwhile. Anew, all in one.
                query = {name: value for name, value in query.items() if name not in ("continue", "limit")}
                items.clear()
                continue
            if page is None:
                return items
            named = {"apiVersion": kind.api_version, "kind": kind.kind}  # a list's items leave these out
            items += [{**named, **item} for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return items
            query = {**query, "continue": token}

    async def _events(self, key: Key) -> tuple[Manifest, ...]:
        """About pods whose own status does not say why they don't serve, and Jobs that get no pod. Asked for only then: a watch
        would stream every event of the namespace."""
        found: list[dict[str, Any]] = []
        pods, jobs = self._cache.children(key, "Pod"), self._cache.children(key, "Job")
        for one in (*filter(_needs_events, pods), *filter(_has_no_pod, jobs)):
            selector = f"involvedObject.uid={one['metadata']['uid']}"
            path = _path(EVENT, key.namespace)
            page = await self._api.call("GET", path, query={"fieldSelector": selector, "limit": "50"})
            found += (page or {}).get("items", ())
        return tuple(found)


def _url(pod: Manifest, port: int, path: str) -> str | None:
    """None where the pod has no address yet."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    return f"http://{f'[{address}]' if ':' in address else address}:{port}{path}"


def _path(kind: ApiKind, namespace: str | None, name: str | None = None) -> str:
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{kind.prefix}{scope}/{kind.plural}" + (f"/{name}" if name is not None else "")


def _needs_events(pod: Manifest) -> bool:
    """Its container waits for a volume, a Secret or the like, or it ended as one does that was told to: only events say why."""
    status = pod.get("status") or {}
    if any(found["type"] == "Ready" and found["status"] == "True" for found in status.get("conditions") or ()):
        return False
    for entry in status.get("containerStatuses") or ():
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in ("ContainerCreating", "PodInitializing") or was_stopped(entry):
            return True
    return False


def _has_no_pod(job: Manifest) -> bool:
    """Its controller has looked at it and made none."""
    status = job.get("status") or {}
    return "startTime" in status and not any(status.get(name) for name in ("active", "succeeded", "failed"))
