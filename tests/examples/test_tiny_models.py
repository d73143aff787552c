"""The models that every image carries: written by the standard library alone, served by the engine, the same each time."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pagemill_server import LLM, SamplingParams

SCRIPT = Path(__file__).parents[2] / "examples" / "tiny_models.py"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    # -S: without what is installed, as in an image's first layers.
    subprocess.run([sys.executable, "-S", str(SCRIPT), str(folder)], check=True)
    return folder


def test_the_generator_answers(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_MODELS", str(models))
    sampling = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    with LLM("pagemill/tiny", max_model_len=512) as llm:
        (answer,) = llm.generate(["hello"], sampling)
    assert len(answer.outputs[0].token_ids) == 400
    assert len(set(answer.outputs[0].token_ids)) > 50, "it repeats itself"


def test_the_encoder_makes_vectors(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_MODELS", str(models))
    with LLM("pagemill/tiny-embed") as llm:
        one, other = (result.outputs.embedding for result in llm.embed(["one text", "another"]))
    assert sum(x * x for x in one) == pytest.approx(1, abs=1e-5)
    assert one != other


def test_they_are_the_same_each_time(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    for file in sorted(path.relative_to(models) for path in models.rglob("*") if path.is_file()):
        assert (tmp_path / file).read_bytes() == (models / file).read_bytes(), file
