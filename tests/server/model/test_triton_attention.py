"""The GPU's attention backend: which rows go to which kernel, and the torch backend's results, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton: `pip install triton`, or torch's CUDA build, which brings it")

from pagemill_server.model.triton_attention import split

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("query_start", "single", "single_rows", "longer", "longer_rows", "longer_start"),
    [
        ((0, 1, 2, 3), [0, 1, 2], [0, 1, 2], [], [], [0]),
        ((0, 4), [], [], [0], [0, 1, 2, 3], [0, 4]),
        ((0, 1, 4, 5, 7), [0, 2], [0, 4], [1, 3], [1, 2, 3, 5, 6], [0, 3, 5]),
    ],
)
def test_single_tokens_and_longer_pieces_are_told_apart(
    query_start: tuple[int, ...],
    single: list[int],
    single_rows: list[int],
    longer: list[int],
    longer_rows: list[int],
    longer_start: list[int],
) -> None:
    found = split(query_start)
    assert found.single.tolist() == single
    assert found.single_rows.tolist() == single_rows
    assert found.longer.tolist() == longer
    assert found.longer_rows.tolist() == longer_rows
    assert found.longer_start.tolist() == longer_start


def run_steps(device: str, **environ: str) -> str:
    paths = (str(ROOT), *(str(ROOT / part) for part in ("server", "kernels")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environ
    command = [sys.executable, "-m", "tests.server.model.triton_steps", device]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_it_computes_what_the_torch_backend_computes() -> None:
    assert run_steps("cpu", TRITON_INTERPRET="1", OMP_NUM_THREADS="1") == "equal\n"


@pytest.mark.gpu
def test_on_a_gpu_too() -> None:
    assert run_steps("cuda") == "equal\n"
