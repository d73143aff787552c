"""A measurement of a server that is started for it: the whole way, and a server that can't start."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from benchmarks import own_server, serve, workload_file
from tests.benchmarks.test_client import workload


@pytest.fixture(autouse=True)
def _logs_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with (
        pytest.raises(own_server.ServerError, match=r"exit code 1(.|\n)*/no/such/model does not exist"),
        own_server.started("/no/such/model", []),
    ):
        raise AssertionError("it is running")


@pytest.mark.model
def test_the_real_model_is_measured_and_the_server_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload_file.write(workload(True), tmp_path / "w.json")
    flags = ["--workload", str(tmp_path / "w.json"), "--reps", "1", "--out", str(tmp_path / "out.json")]
    assert serve.main([*flags, "--", "--max-model-len", "256", "--kv-cache-memory-bytes", "64MiB"]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    (result,) = document["results"]
    assert (result["runs"][0]["output_tokens"], result["runs"][0]["short"]) == (6 * 3, 0)
    assert result["runs"][0]["ttft_p50_s"] > 0
    assert document["server"]["start_s"] > 0
    assert document["server"]["peak_bytes"] > 100_000_000
    assert "start " in capsys.readouterr().out
    assert not any(_serves(pid) for pid in os.listdir("/proc") if pid.isdigit())


def _serves(pid: str) -> bool:
    """Whether a process is a child of this one that still serves."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return int(stat[1]) == os.getpid() and b"serve" in command
