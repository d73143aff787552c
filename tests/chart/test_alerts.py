"""Each alert fires on what it is for and keeps quiet on a healthy release: Prometheus' own promtool plays the series."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Render = Callable[..., list[dict[str, Any]]]
MODEL = 'namespace="blue",llmdeployment="chat",model_name="m"'
POD = f'{MODEL},pod="chat-1",container="server",job="system/pagemill"'
OPERATOR = 'namespace="system",pod="{pod}"'
FIRST, SECOND = OPERATOR.format(pod="a"), OPERATOR.format(pod="b")
STEADY, IDLE, NONE = "0+10x60", "5x60", "0x60"  # counters that grow by ten a minute, and ones that stand still

HEALTHY = {
    f'vllm:time_to_first_token_seconds_bucket{{{POD},le="1"}}': STEADY,
    f'vllm:time_to_first_token_seconds_bucket{{{POD},le="20"}}': STEADY,
    f'vllm:time_to_first_token_seconds_bucket{{{POD},le="+Inf"}}': STEADY,
    f"vllm:iteration_tokens_total_count{{{POD}}}": STEADY,
    f"vllm:num_requests_waiting{{{POD}}}": "3x60",
    f"vllm:num_requests_running{{{POD}}}": "3x60",
    f"vllm:kv_cache_usage_perc{{{POD}}}": "0.7x60",
    f"vllm:num_preemptions_total{{{POD}}}": IDLE,
    f'vllm:admission_rejections_total{{{POD},reason="max_num_queued_reqs"}}': NONE,
    f'vllm:request_success_total{{{POD},finished_reason="error"}}': IDLE,
    f"vllm:corrupted_requests_total{{{POD}}}": NONE,
    f"up{{{POD}}}": "1x60",
    'kube_pod_container_status_restarts_total{namespace="blue",pod="chat-1",container="server"}': "0 0 1x58",
    'kube_pod_container_status_restarts_total{namespace="red",pod="other",container="server"}': STEADY,
    f"pagemill_operator_leader{{{FIRST}}}": "1x60",
    f"pagemill_operator_leader{{{SECOND}}}": NONE,
    f'pagemill_operator_llmdeployments{{{FIRST},ready="false"}}': NONE,
    f"pagemill_operator_reconcile_errors_total{{{FIRST}}}": IDLE,
    f"pagemill_operator_queue_oldest_seconds{{{FIRST}}}": "1x60",
    f'pagemill_operator_reconcile_seconds_bucket{{{FIRST},le="1"}}': STEADY,
    f'pagemill_operator_reconcile_seconds_bucket{{{FIRST},le="60"}}': STEADY,
    f'pagemill_operator_reconcile_seconds_bucket{{{FIRST},le="+Inf"}}': STEADY,
    f'pagemill_operator_api_requests_total{{{FIRST},verb="PATCH",kind="pods",code="200"}}': STEADY,
}
# What differs from that where an alert is due; None takes a series away.
TROUBLE: dict[str, dict[str, str | None]] = {
    "KVCacheSaturated": {f"vllm:kv_cache_usage_perc{{{POD}}}": "0.99x60"},
    "QueueGrowing": {f"vllm:num_requests_waiting{{{POD}}}": "0+5x60"},
    "QueueStuck": {f"vllm:iteration_tokens_total_count{{{POD}}}": IDLE},
    "RequestsRejected": {f'vllm:admission_rejections_total{{{POD},reason="max_num_queued_reqs"}}': STEADY},
    "RequestsFailing": {f'vllm:request_success_total{{{POD},finished_reason="error"}}': STEADY},
    "CorruptedAnswers": {f"vllm:corrupted_requests_total{{{POD}}}": "0x55 1x5"},
    "HighPreemptionRate": {f"vllm:num_preemptions_total{{{POD}}}": "0+100x60"},
    "TTFTHigh": {f'vllm:time_to_first_token_seconds_bucket{{{POD},le="1"}}': IDLE},
    "ModelPodDown": {f"up{{{POD}}}": NONE},
    "ModelPodCrashLooping": {
        'kube_pod_container_status_restarts_total{namespace="blue",pod="chat-1",container="server"}': "0x45 0+1x15"
    },
    "LLMDeploymentNotReady": {f'pagemill_operator_llmdeployments{{{FIRST},ready="false"}}': "2x60"},
    "OperatorDown": {f"pagemill_operator_leader{{{FIRST}}}": None, f"pagemill_operator_leader{{{SECOND}}}": None},
    "OperatorNoLeader": {f"pagemill_operator_leader{{{FIRST}}}": NONE},
    "OperatorTwoLeaders": {f"pagemill_operator_leader{{{SECOND}}}": "1x60"},
    "ReconcileErrors": {f"pagemill_operator_reconcile_errors_total{{{FIRST}}}": STEADY},
    "ScalingBlind": {
        f'pagemill_operator_scaling_active{{{FIRST},llmdeployment_namespace="team",llmdeployment="chat"}}': "0x60"
    },
    "OperatorQueueStuck": {f"pagemill_operator_queue_oldest_seconds{{{FIRST}}}": "0+60x60"},
    "ReconcileSlow": {f'pagemill_operator_reconcile_seconds_bucket{{{FIRST},le="1"}}': IDLE},
    "OperatorRefused": {f'pagemill_operator_api_requests_total{{{FIRST},verb="PATCH",kind="pods",code="403"}}': STEADY},
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: apt-get install prometheus")
    return found


@pytest.fixture(scope="module")
def spec(render: Render) -> dict[str, Any]:
    """The rendered rules, with the chart's own thresholds."""
    (rule,) = [found for found in render("monitoring.rules.enabled=true") if found["kind"] == "PrometheusRule"]
    return dict(rule["spec"])


def alerts(spec: dict[str, Any]) -> set[str]:
    return {rule["alert"] for group in spec["groups"] for rule in group["rules"] if "alert" in rule}


def firing(promtool: str, folder: Path, spec: dict[str, Any], change: dict[str, str | None]) -> set[str]:
    """The alerts that fire at the end of an hour of these series."""
    series = {name: values for name, values in {**HEALTHY, **change}.items() if values is not None}
    (folder / "rules.yaml").write_text(yaml.safe_dump(spec))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                        "eval_time": "1h",
                        "exp_samples": [],
                    }
                    for name in sorted(alerts(spec))
                ],
            }
        ],
    }
    (folder / "test.yaml").write_text(json.dumps(test))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    found = {name for name in alerts(spec) if f'alertname="{name}"' in said or f'alertname=\\"{name}\\"' in said}
    assert bool(found) == bool(done.returncode), said
    return found


def test_prometheus_takes_the_rules(promtool: str, spec: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    checked = subprocess.run(
        [promtool, "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_healthy_release_is_quiet(promtool: str, spec: dict[str, Any], tmp_path: Path) -> None:
    assert firing(promtool, tmp_path, spec, {}) == set()


def test_every_alert_has_its_trouble(spec: dict[str, Any]) -> None:
    assert set(TROUBLE) == alerts(spec)


@pytest.mark.parametrize("alert", sorted(TROUBLE))
def test_an_alert_fires_on_what_it_is_for(promtool: str, spec: dict[str, Any], tmp_path: Path, alert: str) -> None:
    assert firing(promtool, tmp_path, spec, TROUBLE[alert]) == {alert}
