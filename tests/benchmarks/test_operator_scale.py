"""What is read out of an audit log, on a log written by hand as the API server writes it; and the stand-in for a pod's server."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale_audit, scale_load
from benchmarks.scale_audit import Write
from pagemill_operator.pod_state import capacity_of
from pagemill_operator.resource import read

OPERATOR = "system:serviceaccount:pagemill-system:pagemill-operator"
NAMES = [("a", "llm-1"), ("a", "llm-2"), ("b", "llm-1")]


def event(second: float, user: str, verb: str, resource: str, name: str, **more: Any) -> dict[str, Any]:
    plural, _, subresource = resource.partition("/")
    namespace = more.get("namespace", "a")
    about = {"resource": plural, "namespace": namespace, "name": name} | (
        {"subresource": subresource} if subresource else {}
    )
    return {
        "stage": more.get("stage", "ResponseComplete"),
        "verb": verb,
        "user": {"username": user},
        "objectRef": about,
        "responseStatus": {"code": more.get("code", 200)},
        "stageTimestamp": f"2026-01-01T00:00:{second:09.6f}Z",
    }


LOG = [
    event(1, "gitops", "patch", "llmdeployments", "llm-1", code=201),
    event(1.5, "gitops", "patch", "llmdeployments", "llm-2", code=201),
    event(2, OPERATOR, "patch", "serviceaccounts", "llm-1", code=201),
    event(2.25, OPERATOR, "patch", "deployments", "llm-1", code=409),
    event(3, OPERATOR, "patch", "deployments", "llm-1", code=201),
    event(3.5, "system:kube-scheduler", "create", "pods/binding", "llm-1-5d4f-abcde", code=201),
    event(4.5, "system:kube-scheduler", "create", "pods/binding", "llm-1-5d4f-fghij", code=201),
    event(4, OPERATOR, "patch", "llmdeployments/status", "llm-1"),
    event(6, OPERATOR, "patch", "llmdeployments/status", "llm-1"),
    event(7, OPERATOR, "patch", "deployments", "llm-2", code=201),
    event(8, OPERATOR, "patch", "deployments", "llm-1", code=200),  # a later change is not the making
    event(9, OPERATOR, "patch", "deployments", "llm-1", stage="ResponseStarted"),  # said again when it is complete
]


@pytest.fixture
def writes(tmp_path: Path) -> list[Write]:
    """Half of it has been rotated out, and a line is being written."""
    (tmp_path / "audit-2026-01-01T00-00-05.000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG[:6]))
    rest = "".join(json.dumps(line) + "\n" for line in LOG[6:])
    (tmp_path / "audit.jsonl").write_text(rest + json.dumps(LOG[0])[:-20])
    return scale_audit.read(tmp_path / "audit.jsonl")


def test_waits_count_from_the_apply_to_the_first_deployment_the_last_pod_and_the_last_status(
    writes: list[Write],
) -> None:
    found = scale_audit.waits(writes, NAMES, OPERATOR)
    assert found.to_deployment == (2.0, 5.5)
    assert found.to_pod_bound == (3.5,)
    assert found.to_status == (5.0,)


def test_one_users_writes_are_counted_by_kind_the_refused_apart(writes: list[Write]) -> None:
    ours = scale_audit.by(OPERATOR, writes)
    assert scale_audit.kinds(ours) == {
        "patch deployments": 3,
        "patch llmdeployments/status": 2,
        "patch serviceaccounts": 1,
        "patch deployments: 409": 1,
    }
    assert len(scale_audit.by(OPERATOR, writes, since=ours[-1].at)) == 1
    assert len(scale_audit.by(OPERATOR, writes, until=ours[-1].at)) == len(ours) - 1


def test_what_is_named_after_a_deployment_is_counted_with_it() -> None:
    made = [
        ("a", "llm-1"),
        ("a", "llm-1-management"),
        ("a", "llm-10"),
        ("b", "llm-1-x-y"),
        ("a", "llm-1.18a9"),
        ("a", "other"),
    ]
    written = [Write(0.0, OPERATOR, "patch", "secrets", name, 200) for name in made]
    assert scale_audit.per_name(written, NAMES) == {("a", "llm-1"): 3, ("a", "llm-2"): 0, ("b", "llm-1"): 1}


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [((), 0.5, None), ((3.0,), 0.99, 3.0), ((1.0, 2.0), 0.5, 2.0), (tuple(map(float, range(100))), 0.99, 99.0)],
)
def test_percentiles(values: tuple[float, ...], share: float, expected: float | None) -> None:
    assert scale_audit.percentile(values, share) == expected


def test_every_manifest_is_one_that_the_operator_takes() -> None:
    names = scale_load.names(25)
    assert len(set(names)) == 25
    for name in names:
        stored = scale_load.manifest(name)
        stored["metadata"] |= {"uid": "u", "generation": 1}
        assert read(stored).spec.model == "meta-llama/Llama-2-7b-chat-hf"


@pytest.fixture
def stand_in() -> Iterator[int]:
    """The port of one that listens on every address of the loopback, as in the cluster."""
    command = [sys.executable, "-m", "benchmarks.scale_pods", "ready", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().removeprefix("listening "))
        process.kill()


def test_the_stand_in_answers_for_every_address_as_a_server_that_serves(stand_in: int) -> None:
    for address in ("127.0.0.1", "127.9.8.7"):
        with urllib.request.urlopen(f"http://{address}:{stand_in}/ready", timeout=10) as answer:
            body = json.load(answer)
        assert body["ready"] is True
        assert body["phase"] == "Serving"
        assert capacity_of(body["capacity"]) is not None
