"""Waste by block size is arithmetic; steps run at any size."""

import json
from pathlib import Path

import pytest

from benchmarks import block_size
from benchmarks.block_size import SHAPES, waste
from benchmarks.step_shapes import Shape
from benchmarks.traces import Recorded


def test_waste_is_what_the_last_block_leaves_empty() -> None:
    rows = [Recorded(0.0, 3, 2)]  # holds 4 and then 5 tokens
    assert waste(rows, 1) == 0
    assert waste(rows, 4) == pytest.approx(1 - 9 / 12)
    assert waste(rows, 8) == pytest.approx(1 - 9 / 16)


def test_every_size_gets_a_row(tiny: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SHAPES) == 8
    monkeypatch.setattr(block_size, "SHAPES", (Shape(decodes=2, context=20), Shape(chunk=40)))
    out = tmp_path / "out.json"
    flags = [
        "--model",
        tiny,
        "--trace",
        trace,
        "--every",
        "1",
        "--sizes",
        "1",
        "3",
        "32",
        "--reps",
        "1",
        "--rounds",
        "2",
    ]
    assert block_size.main([*flags, "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [one["block_size"] for one in results] == [1, 3, 32]
    assert results[0]["wasted"] == 0 < results[1]["wasted"] < results[2]["wasted"]
    assert all(len(one["seconds"]) == 2 and min(one["seconds"]) > 0 for one in results)
