"""Who decides how many replicas: the operator's own code, an HPA on waiting requests, a KEDA rule on KV usage, or nobody.

Each sees what it would see in a cluster: the operator looks at the pods itself every 5 s, the other two ask a Prometheus that has
scraped each pod within the last 15 s. Asked by `drive` once a period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from benchmarks.autoscale_replay import hpa
from benchmarks.autoscale_replay.fleet import Fleet
from pagemill_operator.autoscale import Decision, History, decide, remember
from pagemill_operator.signals import ReplicaSignals, Samples
from pagemill_operator.spec_scaling import Autoscaling

LOOK_S = 5.0
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Scaler(Protocol):
    """How many replicas the fleet should have."""

    @property
    def period_s(self) -> float: ...

    def wanted(self, fleet: Fleet, now: float) -> int: ...


@dataclass(slots=True)
class Operator:
    """`autoscale.decide`, as `scaling` asks it."""

    spec: Autoscaling
    period_s: float = LOOK_S
    decisions: list[tuple[float, Decision]] = field(default_factory=list)  # those that changed something
    _history: History | None = None
    _preempted: dict[str, tuple[float, int]] = field(default_factory=dict)

    def wanted(self, fleet: Fleet, now: float) -> int:
        time = EPOCH + timedelta(seconds=now)
        history = self._history or History(current=fleet.wanted, since=time)
        decision = decide(self.spec, self._samples(fleet, now, time), history, time)
        self._history = remember(self.spec, history, decision, True, time)
        if decision.desired != fleet.wanted:
            self.decisions.append((now, decision))
        return decision.desired

    def _samples(self, fleet: Fleet, now: float, time: datetime) -> Samples:
        serving = [member.replica for member in fleet.members if member.serves(now)]
        replicas = tuple(
            ReplicaSignals(
                pod=replica.name,
                kv_cache_usage=replica.kv_usage,
                waiting=float(len(replica.waiting)),
                running=float(replica.num_running),
                max_running=float(replica.config.max_num_seqs),
                preemptions_per_second=self._rate(replica.name, replica.preemptions, now),
            )
            for replica in serving
        )
        loading = sum(member.loading(now) for member in fleet.members)
        return Samples(time=time, replicas=replicas, loading=loading, held=len(fleet.held))

    def _rate(self, name: str, count: int, now: float) -> float | None:
        before = self._preempted.get(name)
        self._preempted[name] = (now, count)
        return None if before is None else (count - before[1]) / (now - before[0])


@dataclass(slots=True)
class HpaOnWaiting:
    """A Pods metric, `vllm:num_requests_waiting`, with an AverageValue."""

    target: float  # requests a replica
    behavior: hpa.Behavior
    period_s: float = hpa.SYNC_S

    def wanted(self, fleet: Fleet, now: float) -> int:
        values = [member.scraped[0] for member in fleet.members if member.scraped is not None]
        missing = len(fleet.members) - len(values)
        return self.behavior.apply(hpa.pods(values, missing, self.target, fleet.wanted), fleet.wanted, now)


@dataclass(slots=True)
class KedaOnKv:
    """`sum(vllm:kv_cache_usage_perc)` with a threshold, which KEDA gives to an HPA as an External metric's AverageValue.

    Above zero replicas KEDA's polling interval plays no part: the HPA asks KEDA in each of its rounds, and KEDA asks Prometheus.
    """

    target: float  # used fraction a replica
    behavior: hpa.Behavior
    period_s: float = hpa.SYNC_S

    def wanted(self, fleet: Fleet, now: float) -> int:
        total = sum(member.scraped[1] for member in fleet.members if member.scraped is not None)
        recommended = hpa.external(total, self.target, fleet.wanted, len(fleet.members))
        return self.behavior.apply(recommended, fleet.wanted, now)


@dataclass(slots=True)
class Fixed:
    """A fleet that somebody has sized once."""

    period_s: float = 3600.0

    def wanted(self, fleet: Fleet, now: float) -> int:
        return fleet.wanted
