"""Dashboards and rules ask for series that exist: every query is parsed, every name and label is one that we export."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from pagemill import metrics as served
from pagemill_operator import metrics as operated
from pagemill_operator.labels import DEPLOYMENT_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL, SERVER_NAME
from pagemill_operator.render_pod import PORT_NAME

CHART = Path(__file__).resolve().parents[2] / "charts" / "pagemill"
MONITORED = CHART / "ci" / "monitored-values.yaml"
# Prometheus' own, and what rules that name them say where they come from.
FOREIGN = {"up", "kube_pod_container_status_restarts_total"}
# By Prometheus' discovery and the monitors; the rest comes from the metrics themselves.
TARGET_LABELS = {"namespace", "pod", "container", "job", "instance", "llmdeployment", "le"}
METRIC_LABELS = {
    served.MODEL_NAME_LABEL,
    served.ENGINE_LABEL,
    served.FINISHED_REASON_LABEL,
    served.REJECTION_LABEL,
    served.KEY_LABEL,
    served.MEMORY_KIND_LABEL,
    served.MEMORY_SOURCE_LABEL,
    "num_gpu_blocks",
} | {label for _, labels, _ in operated.METRICS.values() for label in labels}
Render = Callable[..., list[dict[str, Any]]]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [found for found in objects if found["kind"] == kind]
    return found


def exported() -> set[str]:
    """Every series' name."""
    histograms = {*served.HISTOGRAMS, *(name for name, (kind, _, _) in operated.METRICS.items() if kind == "histogram")}
    plain = {*served.GAUGES, *served.COUNTERS, *operated.METRICS} - histograms
    return plain | {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")}


def rules(render: Render) -> Iterator[dict[str, Any]]:
    for group in one(render(values=MONITORED), "PrometheusRule")["spec"]["groups"]:
        yield from group["rules"]


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(CHART.glob("files/dashboards/*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            yield f"{file.stem}: {panel['title']}", panel


def queries(render: Render) -> Iterator[tuple[str, str]]:
    """(where, PromQL), with Grafana's variables filled in."""
    for rule in rules(render):
        yield rule.get("alert") or rule["record"], rule["expr"]
    for where, panel in panels():
        for target in panel.get("targets", ()):
            yield where, target["expr"].replace("$__rate_interval", "5m")
    for file in sorted(CHART.glob("files/dashboards/*.json")):
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert found, variable
                assert found[2] in TARGET_LABELS | METRIC_LABELS
                yield f"{file.stem}: ${variable['name']}", found[1]


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def look(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):  # a range's is visited too
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), look)
    return found


def test_every_query_parses_and_asks_for_what_is_exported(render: Render) -> None:
    recorded = {rule["record"] for rule in rules(render) if "record" in rule}
    known = exported() | recorded | FOREIGN
    asked: set[str] = set()
    for where, query in queries(render):
        for selector in selectors(query):
            assert selector.name in known, f"{where} asks for {selector.name}"
            asked.add(str(selector.name))
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= TARGET_LABELS | METRIC_LABELS, f"{where}: {labels}"
    assert asked >= FOREIGN, "and nothing is allowed that nobody asks for"
    assert recorded & asked, "alerts read the recording rules"


def test_every_query_groups_by_labels_that_exist(render: Render) -> None:
    grouping = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
    for where, query in queries(render):
        for labels in grouping.findall(query):
            names = {name.strip() for name in labels.split(",")}
            assert names <= TARGET_LABELS | METRIC_LABELS, f"{where}: {names}"


def test_a_name_that_is_not_exported_would_be_found() -> None:
    (selector,) = selectors('sum by (le) (rate(vllm:nothing_bucket{namespace="a"}[5m]))')
    assert selector.name not in exported()
    assert [matcher.name for matcher in selector.matchers.matchers] == ["namespace"]


def test_thresholds_namespace_and_runbook_are_filled_in(render: Render) -> None:
    by_name = {rule["alert"]: rule for rule in rules(render) if "alert" in rule}
    assert by_name["TTFTHigh"]["expr"] == "llmdeployment:time_to_first_token_seconds:p99_rate5m > 2.5"
    assert by_name["OperatorDown"]["expr"] == 'absent(pagemill_operator_leader{namespace="system"})'
    for name, alert in by_name.items():
        assert alert["annotations"]["runbook_url"] == f"https://wiki.example/pagemill-runbook#{name.lower()}"
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("warning", "critical")
    assert "${" not in json.dumps(list(rules(render)))


def test_the_models_monitor_finds_the_pods_that_the_operator_makes(render: Render) -> None:
    spec = one(render(values=MONITORED), "PodMonitor")["spec"]
    assert spec["selector"] == {"matchLabels": {NAME_LABEL: SERVER_NAME, MANAGED_BY_LABEL: FIELD_MANAGER}}
    assert spec["namespaceSelector"] == {"any": True}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (PORT_NAME, "/metrics")
    source = "__meta_kubernetes_pod_label_" + re.sub(r"[./-]", "_", DEPLOYMENT_LABEL)
    assert endpoint["relabelings"] == [{"sourceLabels": [source], "targetLabel": "llmdeployment"}]
    scoped = one(render("watchNamespaces={blue}", "monitoring.podMonitor.enabled=true"), "PodMonitor")
    assert scoped["spec"]["namespaceSelector"] == {"matchNames": ["blue"]}


def test_the_operators_monitor_finds_its_service(render: Render) -> None:
    objects = render(values=MONITORED)
    spec = one(objects, "ServiceMonitor")["spec"]
    service = one(objects, "Service")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    (port,) = service["spec"]["ports"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], operated.METRICS_PATH)
    assert port["port"] == operated.METRICS_PORT


def test_nothing_of_prometheus_is_there_unasked(render: Render) -> None:
    groups = {found["apiVersion"].partition("/")[0] for found in render()}
    assert "monitoring.coreos.com" not in groups
    names = {found["metadata"]["name"] for found in render() if found["kind"] == "ConfigMap"}
    assert names == {"pagemill-operator-test"}


def test_grafanas_sidecar_finds_the_dashboards(render: Render) -> None:
    maps = [found for found in render(values=MONITORED) if "dashboard" in found["metadata"]["name"]]
    assert len(maps) == 2
    for found in maps:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Pagemill"}
        ((name, text),) = found["data"].items()
        assert json.loads(text) == json.loads((CHART / "files/dashboards" / name.removeprefix("pagemill-")).read_text())


@pytest.mark.parametrize("file", sorted(CHART.glob("files/dashboards/*.json")), ids=lambda path: path.stem)
def test_a_dashboard_is_whole(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    assert dashboard["uid"] == f"pagemill-{file.stem}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        squares = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not squares & taken, f"{panel['title']} lies on another"
        assert max(x for x, _ in squares) < 24
        taken |= squares


def test_embeddings_have_panels_of_their_own_and_none_of_a_cache() -> None:
    titles = [panel["title"] for where, panel in panels() if where.startswith("serving")]
    start = titles.index("Embeddings (models without a KV cache)")
    mine = [panel for where, panel in panels() if where.startswith("serving")][start + 1 : start + 4]
    text = json.dumps([panel["targets"] for panel in mine])
    for name in (served.WAITING, served.PROMPT_TOKENS, served.QUEUE_TIME):
        assert name in text
    assert served.KV_CACHE_USAGE not in text
