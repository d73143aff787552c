"""Measured steps become coefficients that a replay reads back."""

import json
from pathlib import Path

import pytest

from benchmarks import fit_step, step_cost, step_shapes
from benchmarks.fit_step import Measured, fit, grid, step_shape
from benchmarks.step_cost import StepCost
from benchmarks.step_shapes import Shape
from pagemill_server.engine.step_model import Coefficients, StepShape


def test_the_fit_finds_the_line_that_steps_lie_on() -> None:
    line = StepCost(Coefficients(0.06, 0.002, 0.003, 5e-6), 1e-4)
    shapes = grid(longest=8192, most_tokens=24576)
    found = fit([Measured(shape, line.shape_seconds(step_shape(shape))) for shape in shapes])
    assert found.base == pytest.approx(0.06, rel=0.02)
    assert found.per_token == pytest.approx(0.002, rel=0.02)
    assert found.per_context_token == pytest.approx(5e-6, rel=0.02)


def test_a_step_of_a_shape_is_what_the_engine_would_call_it() -> None:
    shape = Shape(decodes=3, context=70, chunk=40, start=10)
    output = step_shapes.step(shape, block_size=16)
    assert StepShape.of(output) == step_shape(shape) == StepShape(43, 4, 3 * 71 + 40 * 10 + 40 * 41 // 2)
    blocks = [block for sequence in output.sequences for block in sequence.block_table]
    assert sorted(blocks) == list(range(step_shapes.blocks_needed(shape, 16)))


def test_the_grid_stays_inside_model_and_cache() -> None:
    shapes = grid(longest=600, most_tokens=5000)
    assert shapes
    assert all(shape.tokens <= 5000 and shape.start + shape.chunk <= 600 for shape in shapes)


def test_the_command_writes_what_a_replay_reads(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "steps.json"
    assert fit_step.main(["--model", tiny, "--kv-tokens", "1024", "--reps", "1", "--out", str(out)]) == 0
    cost = step_cost.read(out, budget=128)
    assert cost.full_step > 0
    assert cost.copy_seconds(2) > 0
    assert tiny in cost.origin
    assert json.loads(out.read_text())["machine_line"] in capsys.readouterr().out


def test_a_model_that_is_not_here_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_step.main(["--model", "nobody/nothing"]) == 1
    assert "nobody/nothing is not on this machine" in capsys.readouterr().err
