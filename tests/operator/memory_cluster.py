"""A cluster that holds objects and does with a write what an API server does; nothing runs in it, tests say what happened.

It adds uid, generation and defaults, writes quantities its own way, drops what is empty, and counts every write.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pagemill_operator.cluster.interface import ClusterError, Key, Manifest, ObjectRef, Probe
from pagemill_operator.labels import DEPLOYMENT_LABEL

NO_ANSWER = Probe(0, {})


class MemoryCluster:
    """Implements `Cluster`. `writes` names what was written, in order; `refuse` maps a kind to the cluster's refusal."""

    def __init__(self, *resources: Mapping[str, Any]) -> None:
        self.resources = {_key(found): dict(found) for found in resources}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.answers: dict[str, Probe] = {}  # of /ready, by pod name
        self.writes: list[str] = []
        self.refuse: dict[str, ClusterError] = {}

    # What the reconcile calls

    async def resource(self, key: Key) -> Manifest | None:
        return self.resources.get(key)

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
        merged = {**(self.resources[key].get("status") or {}), **status}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.resources[key] = {**self.resources[key], "status": copy.deepcopy(kept)}

    async def probe(self, pod: Manifest, path: str) -> Probe:
        assert path == "/ready"
        return self.answers.get(pod["metadata"]["name"], NO_ANSWER)

    # What a test does

    def child(self, kind: str, name: str = "chat") -> dict[str, Any]:
        return self.objects[kind, name]

    def status(self, key: Key) -> dict[str, Any]:
        return dict(self.resources[key]["status"])

    def condition(self, key: Key, kind: str) -> dict[str, Any]:
        (found,) = [one for one in self.status(key)["conditions"] if one["type"] == kind]
        return dict(found)

    def edit(self, key: Key, **spec: Any) -> None:
        """Change the resource's spec; a field that is None goes."""
        found = self.resources[key]
        merged = {**found["spec"], **spec}
        kept = {name: value for name, value in merged.items() if value is not None}
        generation = found["metadata"]["generation"] + 1
        self.resources[key] = {**found, "spec": kept, "metadata": {**found["metadata"], "generation": generation}}

    def observe_deployment(self, *conditions: Mapping[str, Any], name: str = "chat") -> None:
        """The Deployment's controller has seen the newest generation."""
        deployment = self.objects["Deployment", name]
        generation = deployment["metadata"]["generation"]
        deployment["status"] = {"observedGeneration": generation, "conditions": list(conditions)}

    def put_pod(self, name: str, status: Mapping[str, Any], answer: Probe | None = None, **metadata: Any) -> None:
        """A pod of the Deployment's present template."""
        template = self.objects["Deployment", "chat"]["spec"]["template"]
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
        stored["spec"] |= {"clusterIP": "10.0.0.7", "sessionAffinity": "None"}
    return stored
