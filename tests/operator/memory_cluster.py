"""A cluster that holds objects and does with a write what an API server does; nothing runs in it, tests say what happened.

It adds uid, generation and defaults, writes quantities its own way, drops what is empty, and counts every write.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.cluster.interface import ClusterError, Key, Manifest, ObjectRef, Probe
from pagemill_operator.errors import PrometheusError
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.samples import Answer
from pagemill_operator.spec_scaling import Prometheus

NO_ANSWER = Probe(0, {})


class MemoryCluster:
    """Implements `Cluster`. `writes` names what was written, in order; `refuse` maps a kind to the cluster's refusal."""

    def __init__(self, *resources: Mapping[str, Any]) -> None:
        self.manifests = {_key(found): dict(found) for found in resources}  # LLMDeployments
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.answers: dict[str, Probe] = {}  # of /ready (a gateway's: of /readyz), by pod name
        self.texts: dict[str, str] = {}  # of /metrics, by pod name
        self.waiting: dict[Key, int | None] = {}  # requests that a gateway holds; 0 where a test says nothing
        self.writes: list[str] = []
        self.refuse: dict[str, ClusterError] = {}
        self.all_nodes: list[dict[str, Any]] = []
        self.managed: list[tuple[str, str, str, Any]] = []  # what a management port was asked: pod, method, path, body
        self.management: dict[tuple[str, str], Probe] = {}  # its answers, by pod name and path
        self.posted: list[dict[str, Any]] = []  # Events

    # What the reconcile calls

    async def resource(self, key: Key) -> Manifest | None:
        return self.manifests.get(key)

    async def resources(self, namespace: str) -> tuple[Manifest, ...]:
        return tuple(self.manifests[key] for key in sorted(self.manifests) if key.namespace == namespace)

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        if kind == "Event":
            return tuple(self.events)
        return tuple(
            found
            for (found_kind, _), found in self.objects.items()
            if found_kind == kind and found["metadata"]["labels"].get(DEPLOYMENT_LABEL) == key.name
        )

    async def apply(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind in self.refuse:
            raise self.refuse[kind]
        self.writes.append(f"apply {kind} {name}")
        old = self.objects.get((kind, name))
        new = _as_stored(manifest)
        metadata = {"uid": f"uid-{kind}-{name}", "generation": 1} if old is None else dict(old["metadata"])
        if old is not None and old.get("spec") != new.get("spec"):
            metadata["generation"] += 1
        kept = {field: metadata[field] for field in ("uid", "generation")}
        status = {} if old is None else {"status": old.get("status", {})}
        self.objects[kind, name] = {**new, "metadata": {**new["metadata"], **kept}, **status}

    async def delete(self, ref: ObjectRef) -> None:
        self.writes.append(f"delete {ref.kind} {ref.name}")
        self.objects.pop((ref.kind, ref.name), None)

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        self.writes.append(f"status {key.name}")
        merged = {**(self.manifests[key].get("status") or {}), **status}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.manifests[key] = {**self.manifests[key], "status": copy.deepcopy(kept)}

    async def probe(self, pod: Manifest, path: str, port: int = SERVING_PORT) -> Probe:
        assert (path, port) in (("/ready", SERVING_PORT), ("/readyz", GATEWAY_ADMIN_PORT))
        return self.answers.get(pod["metadata"]["name"], NO_ANSWER)

    async def metrics(self, pod: Manifest) -> str | None:
        return self.texts.get(pod["metadata"]["name"])

    async def held(self, key: Key) -> int | None:
        return self.waiting.get(key, 0)

    async def query(self, namespace: str, prometheus: Prometheus, queries: Mapping[str, str]) -> Mapping[str, Answer]:
        return dict.fromkeys(queries, PrometheusError("nobody answers here"))

    async def nodes(self) -> tuple[Manifest, ...]:
        return tuple(self.all_nodes)

    async def annotate(self, pod: Manifest, annotations: Mapping[str, str | None]) -> None:
        name = pod["metadata"]["name"]
        if "Pod" in self.refuse:
            raise self.refuse["Pod"]
        self.writes.append(f"annotate Pod {name}")
        found = self.objects["Pod", name]
        merged = {**(found["metadata"].get("annotations") or {}), **annotations}
        kept = {key: value for key, value in merged.items() if value is not None}
        self.objects["Pod", name] = {**found, "metadata": {**found["metadata"], "annotations": kept}}

    async def post_event(self, event: Manifest) -> None:
        if event["metadata"]["name"] not in {one["metadata"]["name"] for one in self.posted}:
            self.writes.append(f"event {event['reason']}")
            self.posted.append(dict(event))

    async def manage(self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None = None) -> Probe:
        name = pod["metadata"]["name"]
        self.managed.append((name, method, path, body))
        return self.management.get((name, path), NO_ANSWER)

    # What a test does

    def child(self, kind: str, name: str = "chat") -> dict[str, Any]:
        return self.objects[kind, name]

    def status(self, key: Key) -> dict[str, Any]:
        return dict(self.manifests[key]["status"])

    def condition(self, key: Key, kind: str) -> dict[str, Any]:
        (found,) = [one for one in self.status(key)["conditions"] if one["type"] == kind]
        return dict(found)

    def edit(self, key: Key, **spec: Any) -> None:
        """Change the resource's spec; a field that is None goes."""
        found = self.manifests[key]
        merged = {**found["spec"], **spec}
        kept = {name: value for name, value in merged.items() if value is not None}
        generation = found["metadata"]["generation"] + 1
        self.manifests[key] = {**found, "spec": kept, "metadata": {**found["metadata"], "generation": generation}}

    def observe_deployment(self, *conditions: Mapping[str, Any], name: str = "chat") -> None:
        """The Deployment's controller has seen the newest generation."""
        deployment = self.objects["Deployment", name]
        generation = deployment["metadata"]["generation"]
        deployment["status"] = {"observedGeneration": generation, "conditions": list(conditions)}

    def put_pod(self, name: str, status: Mapping[str, Any], answer: Probe | None = None, **metadata: Any) -> None:
        """A pod of the present template of the Deployment whose name its own begins with, else of `chat`."""
        own = self.objects.get(("Deployment", name.rpartition("-")[0]))
        template = (own or self.objects["Deployment", "chat"])["spec"]["template"]
        made = {**copy.deepcopy(template["metadata"]), "name": name, "namespace": "team", **metadata}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template["spec"], "status": dict(status)}
        self.objects["Pod", name] = pod
        if answer is not None:
            self.answers[name] = answer


def _key(manifest: Mapping[str, Any]) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _as_stored(manifest: Manifest) -> dict[str, Any]:
    stored = copy.deepcopy(dict(manifest))
    if stored["kind"] == "Deployment":
        spec = stored["spec"]["template"]["spec"]
        spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        for volume in spec["volumes"]:
            if volume.get("emptyDir", {}).get("sizeLimit") == "1024Mi":
                volume["emptyDir"]["sizeLimit"] = "1Gi"
        for variable in spec["containers"][0]["env"]:
            if variable.get("value") == "":
                del variable["value"]
    if stored["kind"] == "Service":
        stored["spec"] = {"clusterIP": "10.0.0.7", "sessionAffinity": "None", **stored["spec"]}
    return stored
