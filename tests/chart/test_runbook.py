"""docs/runbook.md has an entry for each alert of the chart and each reason that a condition can have, and for nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import FailureReason
from pagemill_operator.cluster.kinds import KINDS, NODE

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATOR = REPOSITORY / "operator" / "pagemill_operator"
RUNBOOK = REPOSITORY / "docs" / "runbook.md"
MONITORED = REPOSITORY / "charts" / "pagemill" / "ci" / "monitored-values.yaml"
CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
SPEAKS_OF_CONDITIONS = re.compile(r"\b(Trouble|Finding)\b")
# CamelCase in the same files that is no reason of ours.
CONDITIONS = {"Ready", "Progressing", "Degraded", "MemoryFit", "ModelAvailable", "ScalingActive", "Draining"}
ANSWERS = {"True", "False", "Unknown"}
KUBERNETES = {
    *("Bound", "Failed", "Succeeded", "PodScheduled", "Warning", "Mount", "Volume", "ProgressDeadlineExceeded"),
    *(
        "ContainerCreating",
        "PodInitializing",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    ),
    *("ErrImagePull", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable"),
    *("FailedCreatePodSandBox", "FailedCreatePodContainer", "FailedKillPod", "FailedSync", "NetworkNotReady"),
    *("ContainerCannotRun", "StartError", "Killing", "Unhealthy", "FailedCreate", "Running", "Complete", "Completed"),
    *("Error", "Exists", "Never", "ReadWriteOncePod"),
}
PHASES = {"Downloading", "LoadingWeights", "Warmup"}
TYPES = {"PodState"}
SCALING = {"Up", "Down", "Hold", "Operator", "External", "Apply", "Recommend"}
NO_REASONS = CONDITIONS | ANSWERS | KUBERNETES | PHASES | TYPES | SCALING | {kind.kind for kind in (*KINDS, NODE)}
# Rules of a decision that is none, for want of what it hangs on: ScalingActive has them as its reason.
UNDECIDED = {"MissingSignals", "DoubtfulSignals", "StaleSignals", "NoReplicas", "GatewayUnreachable"}
PASSED_ON = {"Evicted"}  # what a node says of a pod that it ended, the most common one
Render = Callable[..., list[dict[str, Any]]]


def words(source: str) -> set[str]:
    """Every text in a file's code that is one word of CamelCase."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and CAMEL_CASE.fullmatch(text)}


def reasons() -> dict[str, str]:
    """Each reason, and a file that has it: whatever looks like one where conditions are spoken of."""
    found = {reason.value: "pagemill/failures.py" for reason in FailureReason} | dict.fromkeys(PASSED_ON, "a node")
    for file in sorted(OPERATOR.rglob("*.py")):
        source = file.read_text()
        if SPEAKS_OF_CONDITIONS.search(source):
            found |= dict.fromkeys(words(source) - NO_REASONS, file.name)
        if file.name == "autoscale.py":
            found |= dict.fromkeys(words(source) & UNDECIDED, file.name)
    return found


def entries() -> dict[str, list[str]]:
    """The headings below each part of the runbook."""
    parts: dict[str, list[str]] = {}
    for line in RUNBOOK.read_text().splitlines():
        if line.startswith("## "):
            parts[line[3:]] = []
        elif line.startswith("### "):
            parts[list(parts)[-1]].append(line[4:])
    return parts


def test_the_search_finds_reasons_and_not_what_only_looks_like_one() -> None:
    assert words('def f():\n    return Trouble("DiskFull", "Disk full"), x["Also"], "URL"') == {"DiskFull", "Also"}
    found = reasons()
    assert {"Serving", "ScaledToZero", "ServerEnded", "ApplyRefused", "Unschedulable", "RollingOut"} <= set(found)


def test_every_reason_has_an_entry() -> None:
    missing = {reason: file for reason, file in reasons().items() if reason not in entries()["Reasons"]}
    assert not missing, "say in docs/runbook.md what to do about it (or here, that it is no reason)"


def test_every_alert_has_an_entry(render: Render) -> None:
    (rule,) = [found for found in render(values=MONITORED) if found["kind"] == "PrometheusRule"]
    alerts = {one["alert"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one}
    assert set(entries()["Alerts"]) == alerts


def test_no_entry_is_about_what_does_not_exist() -> None:
    assert set(entries()["Reasons"]) <= set(reasons())


@pytest.mark.parametrize("part", ["Alerts", "Reasons"])
def test_no_entry_is_there_twice(part: str) -> None:
    headings = entries()[part]
    assert len(headings) == len(set(headings))


def test_every_link_within_the_runbook_leads_somewhere() -> None:
    text = RUNBOOK.read_text()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings
