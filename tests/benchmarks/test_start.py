"""Where the time of a start goes: from the phases that were seen, and from an audit log."""

import json
from pathlib import Path

import pytest

from benchmarks import start, start_cluster
from benchmarks.scale_audit import Write
from benchmarks.start import LISTENING, READY, TOKEN, TORCH, WARMUP, WEIGHTS


def test_parts_follow_the_phases() -> None:
    seen = [(0.5, "Starting"), (2.0, "LoadingWeights"), (3.0, "Warmup"), (3.5, "Serving")]
    parts = start.parts_of(seen, ready_s=3.6, token_s=4.0)
    assert list(parts) == list(start.PARTS)
    assert [round(seconds, 3) for seconds in parts.values()] == [0.5, 1.5, 1.0, 0.5, 0.1, 0.4]
    assert sum(parts.values()) == pytest.approx(4.0)


def test_a_phase_that_was_not_seen_takes_no_time() -> None:
    parts = start.parts_of([(0.5, "Starting"), (2.0, "Warmup")], ready_s=3.0, token_s=3.5)
    assert (parts[TORCH], parts[WEIGHTS], parts[WARMUP], parts[READY], parts[TOKEN]) == (1.5, 0.0, 1.0, 0.0, 0.5)
    parts = start.parts_of([], ready_s=3.0, token_s=3.5)
    assert (parts[LISTENING], parts[TOKEN]) == (3.0, 0.5)


def test_a_server_is_started_and_split(tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "start.json"
    flags = ["--model", tiny, "--reps", "1", "--peers", "", "--patience", "0", "--out", str(out)]
    assert start.main([*flags, "--", "--kv-cache-memory-bytes", "16MiB"]) == 0
    (parts,) = json.loads(out.read_text())["ours"]
    assert parts[LISTENING] > 0
    assert parts[TORCH] > 0
    assert parts[TOKEN] > 0
    assert "ours, to the first token" in capsys.readouterr().out


def write(at: float, resource: str, name: str, code: int = 200) -> Write:
    return Write(at, "somebody", "patch", resource, ("default", name), code)


LOG = [
    write(1.0, "llmdeployments", "other"),
    write(10.0, "llmdeployments", "start-0", 201),
    write(10.25, "jobs", "start-0-preflight", 409),
    write(10.5, "jobs", "start-0-preflight", 201),
    write(11.0, "pods/binding", "start-0-preflight-x", 201),
    write(13.0, "deployments", "start-0", 201),
    write(13.5, "pods/binding", "start-0-5d4f-abcde", 201),
    write(18.0, "llmdeployments/status", "start-0"),
    write(19.5, "llmdeployments/status", "start-0"),
    write(30.0, "llmdeployments/status", "start-0"),
]


def test_from_apply_to_ready_is_split_at_what_was_written() -> None:
    found = start_cluster.moments(LOG, "start-0", started=14.0, pod_ready=19.0, seen=20.0)
    assert list(found.values()) == [10.0, 10.5, 13.0, 13.5, 14.0, 19.0, 19.5]
    assert list(start_cluster.gaps(found).values()) == [0.5, 2.5, 0.5, 0.5, 5.0, 0.5]
    assert "| **from kubectl apply to Ready**" in start_cluster.table([found])
    assert "9.50 (9.50-9.50)" in start_cluster.table([found])


def test_without_a_preflight_its_steps_are_left_out() -> None:
    log = [entry for entry in LOG if entry.resource != "jobs"]
    found = start_cluster.moments(log, "start-0", started=14.0, pod_ready=19.0, seen=20.0)
    assert start_cluster.JOB not in found
    assert start_cluster.gaps(found)[start_cluster.DEPLOYMENT] == 3.0


def test_a_log_without_the_apply_is_no_log_of_it() -> None:
    with pytest.raises(LookupError, match="start-9"):
        start_cluster.moments(LOG, "start-9", started=14.0, pod_ready=19.0, seen=20.0)
