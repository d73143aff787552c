"""What of a look can be believed: values that are no numbers are missing, never 0, and a look from another time is none.

Pure. Called by `autoscale.decide`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

from pagemill_operator.signals import ReplicaSignals, Samples

OLDEST = timedelta(seconds=30)
_FULL = 1.001  # a used fraction, with a rounding


def is_stale(samples: Samples, now: datetime) -> bool:
    """From before the bound; or from as far ahead of now, which only a wrong clock gives."""
    return abs(now - samples.time) > OLDEST


def sound(samples: Samples) -> Samples:
    """The same with what is no number moved to `missing`."""
    faults = {replica.pod: fault for replica in samples.replicas if (fault := _fault(replica))}
    missing = [*samples.missing, *(f"{pod} says {fault}" for pod, fault in faults.items())]
    replicas = tuple(replica for replica in samples.replicas if replica.pod not in faults)
    ttft = samples.ttft_p95
    if ttft is not None and not _counts(ttft):
        missing.append(f"the time to the first token is {ttft:g}")
        ttft = None
    return replace(samples, replicas=replicas, missing=tuple(sorted(missing)), ttft_p95=ttft)


def _fault(replica: ReplicaSignals) -> str:
    """What is wrong with one replica's signals; empty if nothing."""
    if not (_counts(replica.kv_cache_usage) and replica.kv_cache_usage <= _FULL):
        return f"a KV usage of {replica.kv_cache_usage:g}"
    if not _counts(replica.waiting):
        return f"{replica.waiting:g} waiting"
    if not (_counts(replica.max_running) and replica.max_running > 0 and _counts(replica.running)):
        return f"{replica.running:g} of {replica.max_running:g} running"
    rate = replica.preemptions_per_second
    return "" if rate is None or _counts(rate) else f"{rate:g} preemptions a second"


def _counts(value: float) -> bool:
    return math.isfinite(value) and value >= 0
