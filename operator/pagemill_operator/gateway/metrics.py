"""The gateway's metrics: their names and help texts, and the page, which is read off what is served at the moment.

Every series of a route is there from the start, at 0, and goes with it: KEDA's activation query and the operator's wake read the
number that wait. A replica's series lasts as long as it is ready. Used by `command`; dashboards and scaling rules name the
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagemill_operator.gateway.served import OUTCOMES, Served

DEPLOYMENT_LABEL: Final = "deployment"
OUTCOME_LABEL: Final = "outcome"
REPLICA_LABEL: Final = "replica"  # its address

WAITING: Final = "pagemill_gateway_waiting_requests"
RUNNING: Final = "pagemill_gateway_running_requests"
READY_REPLICAS: Final = "pagemill_gateway_ready_replicas"
REQUESTS: Final = "pagemill_gateway_requests_total"
REPLICA_REQUESTS: Final = "pagemill_gateway_replica_requests_total"
WAIT_SECONDS: Final = "pagemill_gateway_wait_seconds"

# As exposed: name → (type, labels, help).
METRICS: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    WAITING: ("gauge", (DEPLOYMENT_LABEL,), "Requests that are held because no replica is ready"),
    RUNNING: ("gauge", (DEPLOYMENT_LABEL,), "Requests that a replica has and this gateway passes on"),
    READY_REPLICAS: ("gauge", (DEPLOYMENT_LABEL,), "Replicas that this gateway knows to be ready"),
    REQUESTS: (
        "counter",
        (DEPLOYMENT_LABEL, OUTCOME_LABEL),
        "Requests that are over: answered, failed at a replica, cut in the answer, refused here, unavailable here, gone before",
    ),
    REPLICA_REQUESTS: (
        "counter",
        (DEPLOYMENT_LABEL, REPLICA_LABEL),
        "Requests that a replica was asked while it was ready",
    ),
    WAIT_SECONDS: ("histogram", (), "How long one request was held, whether it came to a replica or not"),
}
_WAIT_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a family is no use to anybody here


class GatewayMetrics:
    """One process's. `show` says whose deployments they are."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        text = METRICS[WAIT_SECONDS][2]
        self._waits = Histogram(WAIT_SECONDS, text, buckets=_WAIT_BUCKETS, registry=self._registry)

    def show(self, served: Callable[[], Mapping[str, Served]]) -> None:
        """What is read when someone scrapes."""
        self._registry.register(_Deployments(served))

    def waited(self, seconds: float) -> None:
        self._waits.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _Deployments(Collector):
    def __init__(self, served: Callable[[], Mapping[str, Served]]) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        served = self._served()
        for name, read in _GAUGES.items():
            gauge = GaugeMetricFamily(name, METRICS[name][2], labels=METRICS[name][1])
            for deployment, each in served.items():
                gauge.add_metric([deployment], read(each))
            yield gauge
        requests = CounterMetricFamily(REQUESTS, METRICS[REQUESTS][2], labels=METRICS[REQUESTS][1])
        replicas = CounterMetricFamily(
            REPLICA_REQUESTS, METRICS[REPLICA_REQUESTS][2], labels=METRICS[REPLICA_REQUESTS][1]
        )
        for deployment, each in served.items():
            for outcome in OUTCOMES:
                requests.add_metric([deployment, outcome], each.outcomes[outcome])
            for address in sorted(each.replicas):
                replicas.add_metric([deployment, address], each.taken[address])
        yield requests
        yield replicas


_GAUGES: Mapping[str, Callable[[Served], int]] = {
    WAITING: lambda served: served.held,
    RUNNING: lambda served: sum(served.running.values()),
    READY_REPLICAS: lambda served: len(served.replicas),
}
