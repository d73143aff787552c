"""What replicas say of their load, as one look found it: the hand-over from whoever reads it to `autoscale.decide`.

Frozen values, no logic. Filled by `samples` (the operator's own scrape, or Prometheus) and by the replay benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ReplicaSignals:
    """One replica that serves."""

    pod: str
    kv_cache_usage: float  # a fraction 0..1
    waiting: float  # sequences
    running: float  # sequences
    max_running: float  # sequences that a step may hold
    preemptions_per_second: float | None = None  # None: not known yet, a rate needs two looks


@dataclass(frozen=True, slots=True)
class Samples:
    """One look at all replicas of a deployment. `problems` are whole sentences' ends, in the order of the pods' names."""

    time: datetime
    replicas: tuple[ReplicaSignals, ...] = ()  # those whose signals are complete
    ttft_p95: float | None = None  # seconds, over the last minute; None: nobody got a first token in it
    loading: int = 0  # replicas that exist and do not serve yet: capacity to come, and never idle
    held: int | None = 0  # requests that wait at the gateway for a replica; None: no gateway could be asked
    # Pods that serve and whose signals are missing, stale or not numbers: what there is, is too little.
    missing: tuple[str, ...] = ()
    # Signals that can't be trusted at all: duplicate series, a Prometheus that does not answer.
    doubtful: tuple[str, ...] = ()
