"""A namespace in memory with its gateway: both reconciles over it, and pods that become ready when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pagemill_operator.cluster.interface import Key, Probe
from pagemill_operator.gateway.route import Route, of_json
from pagemill_operator.gateway_members import held_ports
from pagemill_operator.labels import GATEWAY_NAME
from pagemill_operator.namespace_gateway import reconcile_gateway
from pagemill_operator.reconcile import reconcile
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import SERVING, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEAST = {"routing": "leastLoad"}


class Namespace(MemoryCluster):
    """`look` is one pass of the worker over all keys of the namespace `team`."""

    def __init__(self, **specs: dict[str, Any]) -> None:
        super().__init__(*(stored(name, **spec) for name, spec in specs.items()))
        self.seconds = 0.0
        self.again: dict[str, float | None] = {}

    async def look(self, passes: int = 1, seconds: float = 0) -> None:
        self.seconds += seconds
        for _ in range(passes):
            self.again[GATEWAY_NAME] = await reconcile_gateway(self, "team", SETTINGS)
            for key in sorted(self.manifests):
                self.again[key.name] = await reconcile(self, key, NOW + timedelta(seconds=self.seconds), SETTINGS)

    async def serve(self) -> Namespace:
        """All replicas and the gateway's pods are ready, and everybody has seen it."""
        await self.look()
        for key in self.manifests:
            self.observe_deployment(name=key.name)
            for number in range(self.child("Deployment", key.name)["spec"]["replicas"]):
                self.put_pod(f"{key.name}-{number}", running(True), SERVING)
        if self.gateway is not None:
            self.observe_deployment(name=GATEWAY_NAME)
            self.listen()
        await self.look(passes=2)
        self.writes.clear()
        return self

    def listen(self, *ports: int, pods: int = 2, status: int = 200, ready: bool = True) -> None:
        """The gateway's pods listen on these ports; left out: on those of all routes."""
        said = Probe(status, {"ready": status == 200, "ports": list(ports or self.ports.values())})
        for number in range(pods):
            self.put_pod(f"{GATEWAY_NAME}-{number}", running(ready), said)

    @property
    def gateway(self) -> dict[str, Any] | None:
        return self.objects.get(("Deployment", GATEWAY_NAME))

    @property
    def ports(self) -> dict[str, int]:
        return held_ports(self.gateway)

    def led_to(self, name: str = "chat") -> int | None:
        """The gateway's port, or None: the replicas."""
        spec = self.child("Service", name)["spec"]
        target = spec["ports"][0]["targetPort"]
        assert (spec["selector"]["app.kubernetes.io/name"] == GATEWAY_NAME) == isinstance(target, int)
        return target if isinstance(target, int) else None

    def route(self, name: str = "chat") -> Route | None:
        found = self.objects.get(("Service", f"{name}-replicas"))
        return None if found is None else of_json(found["metadata"]["annotations"]["pagemill.dev/route"])

    def remove(self, name: str) -> None:
        """As garbage collection does after `kubectl delete`: what it alone owns goes, what others own as well stays."""
        uid = self.manifests.pop(Key("team", name))["metadata"]["uid"]
        for who, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or []
            found["metadata"]["ownerReferences"] = [one for one in owners if one["uid"] != uid]
            if owners and not found["metadata"]["ownerReferences"]:
                del self.objects[who]

    def of_gateway(self) -> set[str]:
        """Kinds of what there is of the gateway, but its pods."""
        return {kind for kind, name in self.objects if name == GATEWAY_NAME}
