"""What runs in a pod of the simulated cluster: a server that loads, serves, drains, goes silent or crashes."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_operator.cluster.interface import Probe
from tests.operator.memory_cluster import NO_ANSWER
from tests.operator.pod_statuses import SERVING, loading


@dataclass
class Server:
    """What runs in a pod, as its container's life goes on."""

    age: int = 0
    starts_after: int = 2
    serves_after: int = 6
    crashes: bool = False
    in_flight: int = 0
    draining: bool = False
    duck_until: int = 0  # of its age
    cuts_at: int = 0  # what runs then
    hears: bool = True  # its ports answer
    seen_ready: int = 0  # by the kubelet: its readiness, and for how many ticks /ready has said otherwise
    leaving: int | None = None  # ticks until it is killed

    @property
    def serving(self) -> bool:
        return self.age >= self.serves_after and not self.crashes

    @property
    def takes(self) -> bool:
        """New requests."""
        return self.serving and self.leaving is None and not (self.draining and self.age >= self.duck_until)

    def ready(self) -> Probe:
        if not self.hears or self.age < self.starts_after or self.crashes:
            return NO_ANSWER
        if not self.serving:
            return loading(self.age * 100 // self.serves_after)
        phase = {"phase": "Draining", "ready": False} if self.draining else {}
        return Probe(503 if self.draining else 200, {**SERVING.body, **phase})

    def drain(self) -> Probe:
        drained = self.draining and self.age >= self.duck_until and not self.in_flight
        return Probe(200, {"draining": self.draining, "drained": drained, "inFlight": self.in_flight})
