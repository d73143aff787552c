"""A cluster of one machine behind the interface that the reconcile knows: objects in memory, pods as processes, Services as ports.

Wires `store`, `controllers`, `node` and `front`, and tells the queue which LLMDeployment a change concerns. `pagemill up` and the
tests use it. What it can't do (mount a claim or an image) `up_file` refuses before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aiohttp

from pagemill.endpoints import METRICS_PATH, SERVING_PORT
from pagemill_operator.cluster.http_probe import NO_ANSWER
from pagemill_operator.cluster.interface import Key, Manifest, ObjectRef, Probe
from pagemill_operator.cluster.local import controllers
from pagemill_operator.cluster.local.devices import Devices
from pagemill_operator.cluster.local.front import Front
from pagemill_operator.cluster.local.front_route import front_route
from pagemill_operator.cluster.local.node import Log, Node
from pagemill_operator.cluster.local.pod_status import LOCAL_ADDRESS, is_ready
from pagemill_operator.cluster.local.store import Change, ObjectStore, deployment_of
from pagemill_operator.cluster.prometheus import answers
from pagemill_operator.gateway.route import Route
from pagemill_operator.labels import KIND
from pagemill_operator.samples import Answer
from pagemill_operator.spec_scaling import Prometheus

_PROBE_SECONDS = 2.0
_PAYLOADS = ("Deployment", "ReplicaSet", "Pod")  # whose changes the controllers follow


class LocalCluster:
    """Use with `async with`: leaving it ends every process that is left, at once. `drain` before that ends them gently."""

    def __init__(
        self,
        *,
        devices: tuple[str, ...],
        models: str,
        log: Log,
        changed: Callable[[Key], None],
        management_token: str | None = None,
    ) -> None:
        self.store = ObjectStore()
        self._node = Node(self.store, Devices(devices), models, log, management_token)
        self._fronts: dict[Key, Front] = {}
        self._changed = changed
        self._stirred = asyncio.Event()
        self._pod_gone = asyncio.Event()
        self.store.listen(self._on_change)

    async def __aenter__(self) -> LocalCluster:
        await self._node.__aenter__()
        self._controlling = asyncio.create_task(self._control())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._controlling.cancel()
        await asyncio.gather(self._controlling, return_exceptions=True)
        await self._node.__aexit__(*error)
        for front in self._fronts.values():
            await front.close()

    def front_ports(self) -> dict[Key, int]:
        """Where each LLMDeployment is asked, on 127.0.0.1."""
        return {key: front.port for key, front in self._fronts.items()}

    def management_ports(self, key: Key) -> tuple[int, ...]:
        """Where its ready replicas are managed and show their pages, on 127.0.0.1, the oldest first."""
        ports = (self._node.management_port(pod) for pod in self._ready_pods(key))
        return tuple(port for port in ports if port is not None)

    async def open_front(self, key: Key, port: int) -> None:
        """Listen for an LLMDeployment's requests. Raises OSError when the port is taken.

        Until a replica is ready they wait, where it may sleep, or are answered with 503.
        """

        def route() -> Route:
            return front_route(key.name, port, self.store.get(KIND, key.namespace, key.name))

        front = Front(port, key.name, lambda: self._ready_ports(key), route, lambda: self._changed(key))
        await front.open()
        self._fronts[key] = front

    def put_resource(self, manifest: Manifest) -> None:
        """What `kubectl apply` is to a cluster."""
        self.store.apply(manifest)

    async def remove_resource(self, key: Key) -> None:
        """What `kubectl delete` is to a cluster: its children go with it. Returns when its last process has ended."""
        self.store.delete(KIND, key.namespace, key.name)
        while self.store.of_deployment(key.namespace, key.name, "Pod"):
            self._pod_gone.clear()
            await self._pod_gone.wait()
        if key in self._fronts and await self.resource(key) is None:  # it may have been put back meanwhile
            await self._fronts.pop(key).close()

    async def drain(self) -> None:
        """Remove every LLMDeployment, all at once."""
        keys = [Key(found["metadata"]["namespace"], found["metadata"]["name"]) for found in self.store.all(KIND)]
        await asyncio.gather(*(self.remove_resource(key) for key in keys))

    async def failure(self) -> None:
        """Wait for ever, or raise what has ended the controllers: a bug of ours, without which nothing moves any more."""
        await asyncio.shield(self._controlling)

    def kill(self) -> None:
        """SIGKILL every process, now."""
        self._node.kill()

    # What the reconcile calls

    async def resource(self, key: Key) -> Manifest | None:
        return self.store.get(KIND, key.namespace, key.name)

    async def resources(self, namespace: str) -> tuple[Manifest, ...]:
        found = (one for one in self.store.all(KIND) if one["metadata"]["namespace"] == namespace)
        return tuple(sorted(found, key=lambda one: str(one["metadata"]["name"])))

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        return self.store.of_deployment(key.namespace, key.name, kind)

    async def apply(self, manifest: Manifest) -> None:
        applied = self.store.apply(manifest)
        if applied["kind"] == "PersistentVolumeClaim":
            self.store.set_status(applied, {"phase": "Bound"})
        key = deployment_of(applied)
        if applied["kind"] == "Service" and key is not None and (front := self._fronts.get(Key(*key))) is not None:
            address = {"ip": LOCAL_ADDRESS, "ports": [{"port": front.port, "protocol": "TCP"}]}
            self.store.set_status(applied, {"loadBalancer": {"ingress": [address]}})

    async def delete(self, ref: ObjectRef) -> None:
        self.store.delete(ref.kind, ref.namespace, ref.name)

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        found = self.store.get(KIND, key.namespace, key.name)
        if found is not None:
            merged = {**(found.get("status") or {}), **status}
            self.store.set_status(found, {name: value for name, value in merged.items() if value is not None})

    async def nodes(self) -> tuple[Manifest, ...]:
        return ()

    async def annotate(self, pod: Manifest, annotations: Mapping[str, str | None]) -> None:
        metadata = pod["metadata"]
        found = self.store.get("Pod", metadata["namespace"], metadata["name"])
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            return
        merged = {**(found["metadata"].get("annotations") or {}), **annotations}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.store.apply({**found, "metadata": {**found["metadata"], "annotations": kept}})

    async def post_event(self, event: Manifest) -> None:
        """Nobody lists events of one machine; `up` says each change of a condition on its own."""

    async def probe(self, pod: Manifest, path: str, port: int = SERVING_PORT) -> Probe:
        """A pod has one port here, wherever it was put."""
        return await self._node.ask(pod, path, _PROBE_SECONDS) if port == SERVING_PORT else NO_ANSWER

    async def metrics(self, pod: Manifest) -> str | None:
        return await self._node.text(pod, METRICS_PATH, _PROBE_SECONDS)

    async def held(self, key: Key) -> int | None:
        return self._fronts[key].held if key in self._fronts else None

    async def query(self, namespace: str, prometheus: Prometheus, queries: Mapping[str, str]) -> Mapping[str, Answer]:
        """Without a token: one machine has no Secrets, and `up` refuses a file that names one."""
        async with aiohttp.ClientSession() as session:
            return await answers(session, prometheus.url, queries)

    async def manage(self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None = None) -> Probe:
        return await self._node.manage(pod, method, path, body, _PROBE_SECONDS)

    # What follows from a change

    def _on_change(self, change: Change) -> None:
        if change.kind in _PAYLOADS:
            self._stirred.set()
        if change.kind == "Pod" and change.new is None:
            self._pod_gone.set()
        for found in (change.old, change.new):
            key = deployment_of(found) if found is not None else None
            if key is not None:
                if (front := self._fronts.get(Key(*key))) is not None:
                    front.refresh()
                self._changed(Key(*key))
                return

    async def _control(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            controllers.sync(self.store)
            self._node.sync()

    def _ready_ports(self, key: Key) -> Iterable[int]:
        ports = (self._node.port(pod) for pod in self._ready_pods(key))
        return (port for port in ports if port is not None)

    def _ready_pods(self, key: Key) -> Iterable[Manifest]:
        for pod in self.store.of_deployment(key.namespace, key.name, "Pod"):
            if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                yield pod
