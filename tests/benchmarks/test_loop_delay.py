"""How late the event loop comes: the figures, and a run on a tiny model in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import loop_delay


def test_looks_are_counted_by_how_late_they_were() -> None:
    found = loop_delay.figures([0.0, 0.0005, 0.003, 0.0099, 0.010, 0.2])
    assert found["bins"] == [2, 0, 1, 1, 1, 0, 1]
    assert (found["looks"], found["max"]) == (6, 200.0)
    assert round(found["p50"], 2) == 6.45
    assert loop_delay.figures([])["max"] == 0.0


def test_streams_of_a_tiny_model_are_watched(tmp_path: Path) -> None:
    out = tmp_path / "loop.json"
    command = [sys.executable, "-m", "benchmarks.loop_delay", "--tiny", "--streams", "3", "--tokens", "20"]
    ended = subprocess.run(
        [*command, "--out", str(out)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr  # 1: late, which a busy machine is
    assert out.exists(), ended.stderr
    document = json.loads(out.read_text())
    assert document["client"]["failed"] == 0
    assert document["late"]["looks"] == document["own"]["looks"] > 0
    assert len(document["latest"]) == min(loop_delay.LATEST, document["late"]["looks"])
    assert "3 streams" in ended.stdout
