"""What scaling asks for, servers export: every query is parsed, its metrics are in the server's registry, and a real page is read
whole by the operator's parser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import promql_parser
import pytest

from pagemill import metrics as served
from pagemill_operator import queries
from pagemill_operator.cluster import held
from pagemill_operator.exposition import parse
from pagemill_operator.gateway import metrics as gateway
from pagemill_operator.render import render
from pagemill_operator.resource import read as read_resource
from pagemill_operator.samples import read
from pagemill_operator.spec_scaling import Targets
from pagemill_server.engine.request import EngineStats
from pagemill_server.metrics import Metrics
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored

EVERYTHING = Targets.model_validate({"ttftSeconds": 1, "preemptionsPerSecond": 1})
ASKED = {
    **{f"operator {signal}": query for signal, query in queries.signal_queries("team", "chat").items()},
    **{f"KEDA {signal}": query for signal, query in queries.keda_queries("team", "chat", EVERYTHING).items()},
}
BUSY = EngineStats(3, 2, 0.5, 64, 7, 0, 0, 0, 0, 0, 0.0, places=16)


def page() -> str:
    metrics = Metrics("some/model", block_size=16, stats=lambda: BUSY)
    metrics.observe(served.TIME_TO_FIRST_TOKEN, 0.3)
    return metrics.render().decode()


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def look(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), look)
    return found


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED.keys())
def test_every_series_that_is_asked_for_is_in_a_servers_page(query: str) -> None:
    """Or Prometheus' own, by which it is known who is scraped still."""
    exported = {*re.findall(r"^([a-z_:]+)\{", page(), re.MULTILINE), "up"}
    found = selectors(query)
    assert {selector.name for selector in found} - {"up"}
    for selector in found:
        assert selector.name in exported
        assert {matcher.name for matcher in selector.matchers.matchers} == {"namespace", "pod"}


def test_the_pods_that_are_asked_for_are_those_that_the_operator_has_made() -> None:
    """Kubernetes calls them after the Deployment, so it must have the resource's own name."""
    (deployment,) = [made for made in render(read_resource(stored("chat")), SETTINGS) if made["kind"] == "Deployment"]
    name = f"{deployment['metadata']['name']}-7d9f6b54c8-x2k9z"
    for query in ASKED.values():
        for selector in selectors(query):
            (pod,) = [matcher for matcher in selector.matchers.matchers if matcher.name == "pod"]
            assert re.fullmatch(pod.value, name)


def test_what_is_asked_of_gateways_they_export() -> None:
    for query, metric in (
        (queries.activation_query("team", "chat"), gateway.WAITING),
        (queries.asleep_query("team", "chat"), gateway.READY_REPLICAS),
    ):
        (selector,) = selectors(query)
        assert selector.name == metric
        _, labels, _ = gateway.METRICS[metric]
        asked = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert asked == {"namespace": "team", **dict.fromkeys(labels, "chat")}
    assert held.WAITING == gateway.WAITING, "which the operator's own scrape of gateways reads"


def test_who_is_silent_is_asked_of_prometheus_own_metric() -> None:
    for selector in selectors(queries.silent_query("team", "chat")):
        assert selector.name == "up"
        assert {matcher.name for matcher in selector.matchers.matchers} == {"namespace", "pod"}


def test_a_servers_page_is_read_whole() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    samples, _ = read(now, ["chat-1"], 0, {"chat-1": page()}, None, 0)
    assert (samples.missing, samples.doubtful) == ((), ())
    (replica,) = samples.replicas
    assert (replica.kv_cache_usage, replica.waiting, replica.running, replica.max_running) == (0.5, 2, 3, 16)
    counters = parse(page()).counters
    assert counters.preemptions == 7
    assert counters.ttft[-1][1] == 1
    assert (0.5, 1.0) in counters.ttft
    assert (0.25, 0.0) in counters.ttft


def test_a_server_that_has_no_engine_yet_is_no_idle_one() -> None:
    starting = Metrics("some/model", block_size=16, stats=lambda: None).render().decode()
    samples, _ = read(datetime(2026, 1, 1, tzinfo=UTC), ["chat-1"], 0, {"chat-1": starting}, None, 0)
    assert samples.replicas == ()
    assert len(samples.missing) == 1
