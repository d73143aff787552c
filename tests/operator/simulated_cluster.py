"""A Kubernetes in memory that moves by itself: its controllers, a kubelet, servers with streams, a cache that lags.

One `tick` is a second. The operator sees what its cache has been told, which lags behind; its own writes it sees at once. It may
be killed before any call. The controllers follow Kubernetes' own rules (rolling.go, controller_utils.ActivePodsWithRanks).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pagemill.endpoints import SERVING_PORT
from pagemill.preflight_report import Report
from pagemill_operator.cluster.interface import Key, Manifest, ObjectRef, Probe
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DEPLOYMENT_LABEL
from tests.operator.memory_cluster import NO_ANSWER, MemoryCluster
from tests.operator.pod_statuses import SERVING, end, running, waiting
from tests.operator.simulated_rollout import roll
from tests.operator.simulated_server import Server

START = datetime(2026, 1, 1, tzinfo=UTC)
BAD_LENGTH = 13  # maxModelLen of a template whose replicas crash
BAD_MODEL = "org/bad"  # whose preflight fails
_WATCHED = ("Deployment", "Pod", "Job", "Service", "PersistentVolumeClaim")
_MOST_BEHIND = 2  # ticks that the cache lags at most


class Killed(Exception):
    """The operator's process has ended in the middle of a reconcile."""


class SimulatedCluster(MemoryCluster):
    """`tick` until something has happened. `chance` is the only source of randomness."""

    def __init__(self, resource: dict[str, Any], chance: random.Random) -> None:
        super().__init__(resource)
        self.chance = chance
        (self.key,) = self.manifests
        self.seconds = 0
        self.servers: dict[str, Server] = {}
        self.sets: dict[str, dict[str, Any]] = {}  # ReplicaSets, by the template's text: replicas, made
        self.desired = 0  # that the Deployment's controller has last seen
        self.view: dict[tuple[str, str], dict[str, Any]] = {}  # what the operator's cache holds
        self.changed = True  # an event has come
        self.killing = 0.0  # how likely a call is the last
        self.lag = 0.0  # how likely a kind's events wait another tick
        self.mild = False  # nothing fails by itself any more
        self.stopped: list[tuple[str, Server]] = []  # whom a ReplicaSet has taken
        self.ages: dict[str, int] = {}  # of Jobs
        self.behind: dict[str, int] = {}  # ticks since a kind was told of
        self._made = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    # As the operator sees it

    async def children(self, key: Key, kind: str) -> tuple[Manifest, ...]:
        return tuple(
            found
            for (found_kind, _), found in self.view.items()
            if found_kind == kind and found["metadata"]["labels"].get(DEPLOYMENT_LABEL) == key.name
        )

    async def apply(self, manifest: Manifest) -> None:
        self._may_die()
        await super().apply(manifest)
        self._stamp(manifest["kind"], manifest["metadata"]["name"])

    async def delete(self, ref: ObjectRef) -> None:
        self._may_die()
        await super().delete(ref)

    async def annotate(self, pod: Manifest, annotations: Mapping[str, str | None]) -> None:
        self._may_die()
        if ("Pod", pod["metadata"]["name"]) in self.objects:
            await super().annotate(pod, annotations)
            self._stamp("Pod", pod["metadata"]["name"])

    async def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        self._may_die()
        await super().patch_status(key, status)

    async def probe(self, pod: Manifest, path: str, port: int = SERVING_PORT) -> Probe:
        server = self.servers.get(pod["metadata"]["name"])
        return NO_ANSWER if server is None else server.ready()

    async def manage(self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None = None) -> Probe:
        self._may_die()
        server = self.servers.get(pod["metadata"]["name"])
        if server is None or not server.hears or not server.serving:
            return NO_ANSWER
        self.managed.append((pod["metadata"]["name"], method, path, body))
        if method == "POST" and not server.draining:
            duck, most = (int((body or {})[name]) for name in ("lameDuckSeconds", "timeoutSeconds"))
            server.draining, server.duck_until, server.cuts_at = True, server.age + duck, server.age + duck + most
        elif method == "DELETE":
            server.draining = False
        return server.drain()

    def _may_die(self) -> None:
        if self.chance.random() < self.killing:
            raise Killed

    def _stamp(self, kind: str, name: str) -> None:
        found = self.objects[kind, name]
        found["metadata"].setdefault("creationTimestamp", self.now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.view[kind, name] = copy.deepcopy(found)

    # What happens

    def tick(self) -> None:
        """One second."""
        self.seconds += 1
        self._deployment()
        self._replica_sets()
        self._jobs()
        for name in list(self.servers):
            self._kubelet(name)
        for kind in _WATCHED:
            self.behind[kind] = self.behind.get(kind, 0) + 1
            if self.chance.random() >= self.lag or self.behind[kind] > _MOST_BEHIND:
                self._tell(kind)

    def _tell(self, kind: str) -> None:
        """The cache catches up with a kind."""
        self.behind[kind] = 0
        true = {who: found for who, found in self.objects.items() if who[0] == kind}
        seen = {who: found for who, found in self.view.items() if who[0] == kind}
        if true != seen:
            self.changed = True
            self.view = {who: found for who, found in self.view.items() if who[0] != kind} | copy.deepcopy(true)

    def tell_all(self) -> None:
        """A resync: what no watch speaks of, too."""
        self.view, self.changed = copy.deepcopy(self.objects), True

    def pods(self, *, all_of_them: bool = False) -> dict[str, dict[str, Any]]:
        """That are not on their way out."""
        found = {name: pod for (kind, name), pod in self.objects.items() if kind == "Pod" and name in self.servers}
        return {name: pod for name, pod in found.items() if all_of_them or "deletionTimestamp" not in pod["metadata"]}

    def is_ready(self, name: str) -> bool:
        conditions = self.objects["Pod", name]["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def takers(self) -> int:
        """Replicas that take a request now."""
        return sum(self.servers[name].takes and self.is_ready(name) for name in self.pods())

    def _deployment(self) -> None:
        found = self.objects.get(("Deployment", "chat"))
        if found is None:
            self.sets.clear()
            return
        spec = found["spec"]
        text = json.dumps(spec["template"], sort_keys=True)
        for one in self.sets.values():
            one["available"] = sum(self.is_ready(name) for name in self._of(one["hash"]))
        if text not in self.sets:
            self._made += 1
            made = {"hash": f"t{self._made}", "template": copy.deepcopy(spec["template"])}
            self.sets[text] = {**made, "replicas": 0, "available": 0}
        new = self.sets[text]
        old = [one for key, one in self.sets.items() if key != text]
        wanted, bounds = spec["replicas"], spec["strategy"]["rollingUpdate"]
        active = [one for one in self.sets.values() if one["replicas"]]
        if (
            wanted != self.desired and active
        ):  # a scaling event: with one set all of it; with more, the greatest takes the rest
            total, most = sum(one["replicas"] for one in active), wanted + (bounds["maxSurge"] if wanted else 0)
            if len(active) == 1:
                active[0]["replicas"] = wanted
            else:
                for one in sorted(active, key=lambda one: -one["replicas"]):
                    change = (most if most < total else min(most, total)) - sum(each["replicas"] for each in active)
                    one["replicas"] = max(0, one["replicas"] + change)
        else:
            roll(new, old, wanted, bounds["maxSurge"], bounds["maxUnavailable"])
        self.desired = wanted
        found["status"] = {"observedGeneration": found["metadata"]["generation"], "conditions": []}

    def _of(self, hashed: str) -> list[str]:
        return [name for name, pod in self.pods().items() if pod["metadata"]["labels"]["pod-template-hash"] == hashed]

    def _replica_sets(self) -> None:
        known = {one["hash"] for one in self.sets.values()}
        for name, pod in self.pods().items():
            if pod["metadata"]["labels"]["pod-template-hash"] not in known:
                self._stop(name, taken=False)
        for one in self.sets.values():
            mine = self._of(one["hash"])
            for _ in range(one["replicas"] - len(mine)):
                self._start(one)
            for name in sorted(mine, key=self._rank)[: max(0, len(mine) - one["replicas"])]:
                self._stop(name, taken=True)

    def _rank(self, name: str) -> tuple[bool, bool, int, int]:
        pod = self.objects["Pod", name]
        cost = (pod["metadata"].get("annotations") or {}).get(DELETION_COST_ANNOTATION, "0")
        return (pod["status"]["phase"] != "Pending", self.is_ready(name), int(cost), self.servers[name].age)

    def _start(self, one: dict[str, Any]) -> None:
        self._made += 1
        name, template = f"chat-{self._made:04}", one["template"]
        words = template["spec"]["containers"][0]["args"]
        crashes = "--max-model-len" in words and words[words.index("--max-model-len") + 1] == str(BAD_LENGTH)
        metadata = copy.deepcopy(template["metadata"]) | {"name": name, "namespace": "team", "uid": name}
        metadata["labels"]["pod-template-hash"] = one["hash"]
        metadata["creationTimestamp"] = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.servers[name] = Server(
            starts_after=self.chance.randint(1, 3), serves_after=self.chance.randint(4, 9), crashes=crashes
        )
        self.objects["Pod", name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }

    def stop(self, name: str) -> None:
        """A hand deletes the pod, or a node is drained."""
        self._stop(name, taken=False)

    def _stop(self, name: str, *, taken: bool) -> None:
        server, pod = self.servers[name], self.objects["Pod", name]
        if taken:
            self.stopped.append((name, copy.copy(server)))
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        server.leaving = grace
        over = self.now + timedelta(seconds=grace)
        pod["metadata"]["deletionTimestamp"] = over.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _kubelet(self, name: str) -> None:
        server = self.servers[name]
        server.age += 1
        if server.takes and self.is_ready(name) and self.chance.random() < 0.3:
            server.in_flight += 1
        if server.in_flight and self.chance.random() < 0.3:
            server.in_flight -= 1
        if server.draining and server.age >= server.cuts_at:
            server.in_flight = 0
        if server.leaving is not None:
            server.leaving -= 1
            if server.leaving <= 0 or not server.in_flight:
                del self.objects["Pod", name], self.servers[name]
            return
        pod = self.objects["Pod", name]
        if server.age < server.starts_after:
            return
        if server.crashes:
            restarts = min(server.age // 5, 3) + 1  # the pauses between them grow
            pod["status"] = waiting("CrashLoopBackOff", restarts=restarts, last=end(1, "it can't"))
            return
        was, says = self.is_ready(name), server.ready().status == 200
        server.seen_ready = 0 if was == says else server.seen_ready + 1
        is_ready = says if says or server.seen_ready >= 2 else was
        if pod["status"]["phase"] != "Running" or was != is_ready:
            pod["status"] = running(is_ready)
            pod["status"]["containerStatuses"][0]["started"] = True

    def _jobs(self) -> None:
        jobs = {name: found for (kind, name), found in self.objects.items() if kind == "Job"}
        for kind, name in list(self.objects):
            if kind == "Pod" and "-preflight-" in name and name.rpartition("-")[0] not in jobs:
                del self.objects[kind, name]
        self.ages = {name: self.ages.get(name, -1) + 1 for name in jobs}
        for name, found in jobs.items():
            age = self.ages[name]
            status = {1: running(False), 4: self._looked(found)}.get(age)
            if status is not None:
                template = found["spec"]["template"]
                metadata = {**template["metadata"], "name": f"{name}-x", "namespace": "team", "uid": f"{name}-x"}
                metadata["ownerReferences"] = [{"uid": found["metadata"]["uid"]}]
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": template["spec"],
                    "status": status,
                }
                self.objects["Pod", f"{name}-x"] = pod

    def _looked(self, job: Manifest) -> dict[str, Any]:
        model = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
        bad = model == BAD_MODEL
        text = (
            "it is bad"
            if bad
            else Report("Fits", "c" * 40, f"hf://{model}@{'c' * 40}", SERVING.body["capacity"]).to_line()
        )
        over = {**end(int(bad), text), "finishedAt": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        state = {"name": "preflight", "restartCount": 0, "state": {"terminated": over}}
        return {"phase": "Failed" if bad else "Succeeded", "conditions": [], "containerStatuses": [state]}
