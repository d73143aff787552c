"""One trace, four ways of deciding: the operator's own with its defaults, and the others with what costs as many replica-hours.

An HPA and a KEDA rule also run with the targets that their guides show. Called by `__main__`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.autoscale_replay import drive, request
from benchmarks.autoscale_replay.drive import Hour
from benchmarks.autoscale_replay.figures import Figures, figures
from benchmarks.autoscale_replay.fleet import FleetConfig
from benchmarks.autoscale_replay.hpa import Behavior
from benchmarks.autoscale_replay.match import match
from benchmarks.autoscale_replay.replica import Replica, ReplicaConfig
from benchmarks.autoscale_replay.scalers import Fixed, HpaOnWaiting, KedaOnKv, Operator, Scaler
from benchmarks.traces import Recorded
from pagemill_operator.spec_scaling import Autoscaling

GUIDE_WAITING = 5.0  # requests a replica
GUIDE_KV = 0.8
WAITING_RANGE = 0.2, 64.0  # where targets of equal replica-hours are looked for
KV_RANGE = 0.005, 0.8
LEAST = 1  # replicas, for everybody


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for everybody."""

    rows: Sequence[Recorded]
    fleet: FleetConfig
    start: int  # replicas that serve when the trace begins
    mean_load: float  # replicas that the trace would keep busy if none ever idled

    def run(self, scaler: Scaler, replicas: int | None = None) -> Hour:
        requests = request.make(self.rows, self.fleet.replica.cost)
        return drive.run(requests, self.fleet, scaler, replicas or self.start)


def setting(rows: Sequence[Recorded], fleet: FleetConfig) -> Setting:
    """Everybody starts with what the trace would keep busy."""
    load = busy_seconds(rows, fleet.replica) / rows[-1].at
    return Setting(rows, fleet, max(LEAST, math.ceil(load)), load)


def busy_seconds(rows: Sequence[Recorded], config: ReplicaConfig) -> float:
    """One replica for all requests, with a queue that is never empty."""
    replica, now = Replica("alone", config), 0.0
    waiting = iter(request.make(rows, config.cost))
    following = next(waiting, None)
    while following is not None or replica.load:
        while following is not None and replica.load < 2 * config.max_num_seqs:
            replica.waiting.append(following)
            following = next(waiting, None)
        now += replica.begin()
        replica.finish(now)
    return now


def compare(setting: Setting, targets_spec: Autoscaling) -> Iterator[Figures]:
    """A row each, as it comes: the operator first, whose replica-hours the others get."""
    ours = setting.run(Operator(targets_spec))
    yield figures("operator", "defaults", ours)
    seconds = ours.replica_seconds
    most = setting.fleet.max_replicas
    hpa = match(lambda target: setting.run(HpaOnWaiting(target, Behavior(LEAST, most))), seconds, *WAITING_RANGE)
    yield figures("HPA, waiting", f"{hpa.target:.3g}", hpa.hour)
    keda = match(lambda target: setting.run(KedaOnKv(target, Behavior(LEAST, most))), seconds, *KV_RANGE)
    yield figures("KEDA, KV usage", f"{keda.target:.3g}", keda.hour)
    size = seconds / ours.span_s
    for replicas in sorted({math.floor(size), math.ceil(size)}):
        yield figures("fixed", str(replicas), setting.run(Fixed(), replicas))
    yield figures(
        "HPA, waiting", f"{GUIDE_WAITING:g}, usual", setting.run(HpaOnWaiting(GUIDE_WAITING, Behavior(LEAST, most)))
    )
    yield figures("KEDA, KV usage", f"{GUIDE_KV:g}, usual", setting.run(KedaOnKv(GUIDE_KV, Behavior(LEAST, most))))
