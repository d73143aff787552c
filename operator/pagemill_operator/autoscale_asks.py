"""How many replicas each signal asks for, from one look: a total each, not a step. The largest of them decides.

Pure. Knows targets and what was measured, neither bounds nor windows. Each ask is a function of its own; a new signal is one more
in `asks`. Called by `autoscale.decide` with samples that `autoscale_trust.sound` has been over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pagemill_operator.signals import Samples
from pagemill_operator.spec_scaling import Targets

_FUZZ = 1e-9  # of a sum of fractions: 0.1 + 0.2 over 0.3 is one replica, not two
_MOST = 1e6  # more replicas than anybody has: what is larger is not told apart


@dataclass(frozen=True, slots=True)
class SignalAsk:
    """What one signal said, and how many replicas it asks for."""

    name: str  # as in spec.autoscaling.targets: "kvCacheUsage" …; "heldRequests" at the gateway
    value: str  # for people: "0.93 on average", "7 waiting"
    desired: int
    target: float | None = None  # what one replica should carry; None: at the gateway there is none

    @property
    def words(self) -> str:
        """For a reason: "waitingRequests asks for 4 replicas (7 waiting, target 2)"."""
        target = "" if self.target is None else f", target {self.target:g}"
        return f"{self.name} asks for {count(self.desired)} ({self.value}{target})"


def asks(targets: Targets, samples: Samples, current: int, settling: bool) -> tuple[SignalAsk, ...]:
    """All signals that the targets name. `settling`: replicas are on their way or have come within the last minute."""
    return tuple(_asks(targets, samples, current, settling))


def _asks(targets: Targets, samples: Samples, current: int, settling: bool) -> Iterator[SignalAsk]:
    yield _waiting(targets.waiting_requests, samples, current)
    if samples.replicas:
        yield _kv_cache(targets.kv_cache_usage, samples)
        yield _running(targets.running_ratio, samples)
    if targets.preemptions_per_second is not None:
        yield _preemptions(targets.preemptions_per_second, samples, current)
    if targets.ttft_seconds is not None:
        yield _ttft(targets.ttft_seconds, samples, current, settling)


def _waiting(target: float, samples: Samples, current: int) -> SignalAsk:
    """A queue, at the gateway or in replicas, asks for as many as would hold all that wait and run.

    Each replica more not only lets `target` wait but at once takes off the queue what a replica runs. So it asks for
    (waiting + serving × carried) / (target + carried), `carried` being what the fullest runs; where nothing runs that is a replica
    for each `target` that wait. The same queue asks for the same however long it waits, so one that has built up while replicas
    were on their way doesn't ask for ever more of them; one that outgrows them asks for more at once. What a replica carries isn't
    known before one serves: until then no queue asks for more than there is.
    """
    held = samples.held or 0
    queue = sum(replica.waiting for replica in samples.replicas) + held
    desired = _ceil(queue / target)
    value = f"{queue:g} waiting" + (f", {held} of them at the gateway" if held else "")
    if not samples.replicas:
        desired = min(desired, current)
    elif queue:
        carried = max(replica.running for replica in samples.replicas)
        desired = min(desired, _ceil((queue + len(samples.replicas) * carried) / (target + carried)))
        value += f", a replica runs {carried:g}" if carried else ""
    return SignalAsk("waitingRequests", value, desired, target)


def _kv_cache(target: float, samples: Samples) -> SignalAsk:
    used = [replica.kv_cache_usage for replica in samples.replicas]
    return SignalAsk("kvCacheUsage", f"{sum(used) / len(used):.2f} on average", _ceil(sum(used) / target), target)


def _running(target: float, samples: Samples) -> SignalAsk:
    running = sum(replica.running for replica in samples.replicas)
    most = sum(replica.max_running for replica in samples.replicas)
    mean = most / len(samples.replicas)
    return SignalAsk("runningRatio", f"{running:g} of {most:g} running", _ceil(running / (target * mean)), target)


def _preemptions(target: float, samples: Samples, current: int) -> SignalAsk:
    """A replica whose rate isn't known yet may preempt: with one of them it asks for what there is at least."""
    rates = [replica.preemptions_per_second for replica in samples.replicas]
    known = sum(rate for rate in rates if rate is not None)
    desired, value = _ceil(known / target), f"{known:.2g} in all"
    if None in rates:
        desired, value = max(desired, current), f"{value}, not known of all yet"
    return SignalAsk("preemptionsPerSecond", value, desired, target)


def _ttft(target: float, samples: Samples, current: int, settling: bool) -> SignalAsk:
    """Over its target in proportion to those that serve, twice as many at most; down to half of it what there is, below nothing.

    A short one says nothing of how few would do. It is of the last minute, so it asks for no more than there is while others come.
    """
    if samples.ttft_p95 is None:
        return SignalAsk("ttftSeconds", "no first token in the last minute", 0, target)
    over = samples.ttft_p95 / target
    desired = current if over >= 0.5 else 0
    if over > 1 and not settling:
        desired = max(current, _ceil(len(samples.replicas) * min(2.0, over)))
    return SignalAsk("ttftSeconds", f"{samples.ttft_p95:.2f} s at p95", desired, target)


def count(replicas: int) -> str:
    """For a reason."""
    return f"{replicas} replica" if replicas == 1 else f"{replicas} replicas"


def _ceil(replicas: float) -> int:
    return math.ceil(min(replicas, _MOST) * (1 - _FUZZ))
