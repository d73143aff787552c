"""The operator's own metrics: their names and help texts, what counts them, and the page on --metrics-port.

Dashboards, alerts and monitors name them through these constants. A standby has the page too: its `_leader` is 0, and what it
says of queue and cache is its own, so queries join on `_leader == 1` or take the maximum. kopf's calls, the watches, are not
counted. Used by `__main__`, whose parts are handed the methods as callbacks and know nothing of this file.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagemill_operator.autoscale import Decision
from pagemill_operator.cluster.interface import Key, Manifest

METRICS_PORT: Final = 9402
METRICS_PATH: Final = "/metrics"

RECONCILE_SECONDS: Final = "pagemill_operator_reconcile_seconds"
RECONCILE_ERRORS: Final = "pagemill_operator_reconcile_errors_total"
QUEUE_DEPTH: Final = "pagemill_operator_queue_depth"
QUEUE_OLDEST_SECONDS: Final = "pagemill_operator_queue_oldest_seconds"
API_REQUESTS: Final = "pagemill_operator_api_requests_total"
API_SECONDS: Final = "pagemill_operator_api_seconds"
LEADER: Final = "pagemill_operator_leader"
EVENTS: Final = "pagemill_operator_events_total"
LLMDEPLOYMENTS: Final = "pagemill_operator_llmdeployments"
SCALING_DECISIONS: Final = "pagemill_operator_scaling_decisions_total"
SCALING_DESIRED: Final = "pagemill_operator_scaling_desired_replicas"
SCALING_ACTIVE: Final = "pagemill_operator_scaling_active"

# As exposed: name → (type, labels, help).
METRICS: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    RECONCILE_SECONDS: ("histogram", (), "Time of one reconcile of one LLMDeployment, failed ones included"),
    RECONCILE_ERRORS: ("counter", (), "Reconciles that failed; each is tried again with back-off"),
    QUEUE_DEPTH: ("gauge", (), "LLMDeployments to be looked at, those that are not due yet included"),
    QUEUE_OLDEST_SECONDS: (
        "gauge",
        (),
        "How long the LLMDeployment that is due for longest has waited; 0 on a standby",
    ),
    API_REQUESTS: (
        "counter",
        ("verb", "kind", "code"),
        'Calls of the Kubernetes API; code "none" where no answer came',
    ),
    API_SECONDS: ("histogram", ("verb",), "Time of one call of the Kubernetes API"),
    LEADER: ("gauge", (), "1 while this operator holds the Lease and acts, else 0"),
    EVENTS: ("counter", ("kind",), "Watch events, by kind of object"),
    LLMDEPLOYMENTS: ("gauge", ("ready",), "LLMDeployments by whether their Ready condition is true"),
    SCALING_DECISIONS: (
        "counter",
        ("llmdeployment_namespace", "llmdeployment", "decision", "rule"),
        "Decisions on how many replicas there should be, one a look: Up, Down or Hold, and the rule that decided",
    ),
    SCALING_DESIRED: (
        "gauge",
        ("llmdeployment_namespace", "llmdeployment"),
        "Replicas that the last decision asks for",
    ),
    SCALING_ACTIVE: (
        "gauge",
        ("llmdeployment_namespace", "llmdeployment"),  # `namespace` is the scraped pod's own
        "1 where the last decision had all signals, 0 where it holds for want of them",
    ),
}

_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_API_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a family is no use to anybody here


class OperatorMetrics:
    """One process's; everything without a label stands at 0 from the start."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reconciles = Histogram(*_named(RECONCILE_SECONDS), buckets=_RECONCILE_BUCKETS, registry=self._registry)
        self._errors = Counter(*_named(RECONCILE_ERRORS), registry=self._registry)
        self._requests = Counter(*_named(API_REQUESTS), registry=self._registry)
        self._seconds = Histogram(*_named(API_SECONDS), buckets=_API_BUCKETS, registry=self._registry)
        self._events = Counter(*_named(EVENTS), registry=self._registry)
        self._decisions = Counter(*_named(SCALING_DECISIONS), registry=self._registry)
        self._desired = Gauge(*_named(SCALING_DESIRED), registry=self._registry)
        self._active = Gauge(*_named(SCALING_ACTIVE), registry=self._registry)

    def watch(
        self,
        depth: Callable[[], int],
        oldest: Callable[[], float],
        leads: Callable[[], bool],
        ready: Callable[[], Tally[bool]],
    ) -> None:
        """What is read when someone scrapes."""
        for name, read in (
            (QUEUE_DEPTH, depth),
            (QUEUE_OLDEST_SECONDS, lambda: oldest() if leads() else 0.0),
            (LEADER, leads),
        ):
            Gauge(*_named(name), registry=self._registry).set_function(_float(read))
        self._registry.register(_ReadyCount(ready))

    def reconciled(self, seconds: float, failed: bool) -> None:
        self._reconciles.observe(seconds)
        if failed:
            self._errors.inc()

    def called(self, verb: str, path: str, code: str, seconds: float) -> None:
        self._requests.labels(verb, resource_of(path), code).inc()
        self._seconds.labels(verb).observe(seconds)

    def heard(self, kind: str) -> None:
        self._events.labels(kind).inc()

    def decided(self, key: Key, decision: Decision | None) -> None:
        """None: nobody decides for it any more, here."""
        labels = (key.namespace, key.name)
        if decision is None:
            for gauge in (self._desired, self._active):
                gauge.remove(*labels)
            self._decisions.remove_by_labels({"llmdeployment_namespace": key.namespace, "llmdeployment": key.name})
            return
        self._decisions.labels(*labels, decision.decision, decision.rule).inc()
        self._desired.labels(*labels).set(decision.desired)
        self._active.labels(*labels).set(decision.active)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _ReadyCount(Collector):
    def __init__(self, count: Callable[[], Tally[bool]]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        _, labels, text = METRICS[LLMDEPLOYMENTS]
        family = GaugeMetricFamily(LLMDEPLOYMENTS, text, labels=labels)
        counted = self._count()
        for ready in (True, False):
            family.add_metric([str(ready).lower()], counted[ready])
        yield family


def ready_tally(resources: Iterable[Manifest]) -> Tally[bool]:
    """How many LLMDeployments are ready, by their status."""
    conditions = ((found.get("status") or {}).get("conditions") or () for found in resources)
    return Tally(any(each["type"] == "Ready" and each["status"] == "True" for each in listed) for listed in conditions)


def resource_of(path: str) -> str:
    """The plural that a path of the API is about, with its subresource: "pods", "llmdeployments/status"; "" for discovery."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]  # after /apis/GROUP/VERSION or /api/VERSION
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])


@contextlib.asynccontextmanager
async def serving(port: int | None, metrics: OperatorMetrics) -> AsyncIterator[None]:
    """The page at `port` of every address as long as this is open; nothing where there is none."""
    if port is None:
        yield
        return

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get(METRICS_PATH, page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


def _named(name: str) -> tuple[str, str, tuple[str, ...]]:
    _, labels, text = METRICS[name]
    return name, text, labels


def _float(read: Callable[[], float]) -> Callable[[], float]:
    return lambda: float(read())
