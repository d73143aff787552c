"""The operator's own page: every name that is promised, as a scraper reads it."""

from __future__ import annotations

import socket
from collections import Counter

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill_operator import metrics as names
from pagemill_operator.metrics import METRICS, OperatorMetrics, ready_tally, resource_of, serving


class Values:
    """Of one scrape: a family's type, and a sample's value by name and labels."""

    def __init__(self, page: bytes) -> None:
        families = list(text_string_to_metric_families(page.decode()))
        self.types = {family.name: family.type for family in families}
        self.helps = {family.name: family.documentation for family in families}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, *sorted(labels.items())))


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics()


def watched(metrics: OperatorMetrics, leads: bool = True) -> Values:
    metrics.watch(lambda: 3, lambda: 2.5, lambda: leads, lambda: Counter({True: 4}))
    return Values(metrics.page())


def test_every_promised_name_is_there_with_its_type_and_help(metrics: OperatorMetrics) -> None:
    metrics.called("GET", "/api/v1/pods", "200", 0.1)
    metrics.heard("Pod")
    values = watched(metrics)
    for name, (kind, _, text) in METRICS.items():
        family = name.removesuffix("_total")
        assert values.types[family] == kind
        assert values.helps[family] == text
    assert set(values.types) == {name.removesuffix("_total") for name in METRICS}


def test_what_has_no_label_stands_at_zero_from_the_start(metrics: OperatorMetrics) -> None:
    values = watched(metrics)
    assert values(names.RECONCILE_ERRORS) == 0
    assert values(f"{names.RECONCILE_SECONDS}_count") == 0


def test_gauges_are_read_at_the_scrape(metrics: OperatorMetrics) -> None:
    values = watched(metrics)
    assert values(names.QUEUE_DEPTH) == 3
    assert values(names.QUEUE_OLDEST_SECONDS) == 2.5
    assert values(names.LEADER) == 1
    assert values(names.LLMDEPLOYMENTS, ready="true") == 4
    assert values(names.LLMDEPLOYMENTS, ready="false") == 0


def test_a_standby_has_no_old_keys_for_it_takes_none(metrics: OperatorMetrics) -> None:
    values = watched(metrics, leads=False)
    assert values(names.LEADER) == 0
    assert values(names.QUEUE_OLDEST_SECONDS) == 0


def test_counting(metrics: OperatorMetrics) -> None:
    metrics.reconciled(0.2, failed=False)
    metrics.reconciled(0.3, failed=True)
    metrics.called("PATCH", "/apis/pagemill.dev/v1alpha1/namespaces/a/llmdeployments/b/status", "409", 0.1)
    metrics.heard("Pod")
    values = watched(metrics)
    assert values(f"{names.RECONCILE_SECONDS}_count") == 2
    assert values(names.RECONCILE_ERRORS) == 1
    assert values(names.API_REQUESTS, verb="PATCH", kind="llmdeployments/status", code="409") == 1
    assert values(f"{names.API_SECONDS}_count", verb="PATCH") == 1
    assert values(names.EVENTS, kind="Pod") == 1


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/a/pods", "pods"),
        ("/api/v1/namespaces/a/pods/p", "pods"),
        ("/api/v1/namespaces/a/pods/p/status", "pods/status"),
        ("/apis/apps/v1/deployments", "deployments"),
        ("/apis/apps/v1/namespaces/a/deployments/d", "deployments"),
        ("/api/v1/namespaces/a", "namespaces"),
        ("/api/v1/nodes/n", "nodes"),
        ("/apis/pagemill.dev/v1alpha1", ""),
        ("/version", ""),
    ],
)
def test_the_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource


def test_readiness_is_the_condition_s(metrics: OperatorMetrics) -> None:
    def llm(status: str | None, kind: str = "Ready") -> dict[str, object]:
        return {"status": {"conditions": [{"type": kind, "status": status}]}} if status else {}

    tally = ready_tally([llm("True"), llm("True"), llm("False"), llm("Unknown"), llm(None), llm("True", "Progressing")])
    assert (tally[True], tally[False]) == (2, 4)


async def test_the_page_is_served_and_a_taken_port_is_said(metrics: OperatorMetrics) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with serving(port, metrics), aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}{names.METRICS_PATH}") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert Values(await answer.read())(names.RECONCILE_ERRORS) == 0
        with pytest.raises(OSError, match="address already in use"):
            await serving(port, metrics).__aenter__()
    async with serving(None, metrics):
        pass
