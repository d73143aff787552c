"""The kernels' benchmark: its arithmetic anywhere, itself where there is a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import kernels_gpu

ROOT = Path(__file__).parents[2]


def test_attention_reads_each_key_and_value_once() -> None:
    query = torch.empty(2, 8, 16, dtype=torch.bfloat16)
    assert kernels_gpu.attention_bytes(query, 4, [10, 20]) == 2 * (2 * 4 * 16 * 30) + 2 * 2 * (2 * 8 * 16)


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (7, 1), (7, 7), (9, 4)])
def test_flop_are_of_the_keys_that_each_query_sees(length: int, chunk: int) -> None:
    seen = sum(length - chunk + row + 1 for row in range(chunk))
    assert kernels_gpu.attention_flop(3, 16, [length, 5], [chunk, 0]) == 4 * 3 * 16 * seen


def test_a_figure_is_over_the_ceilings() -> None:
    work = kernels_gpu.Work("a", lambda: None, bytes=2 * 10**9, flop=10**12)
    found = kernels_gpu.figure(work, seconds=0.5, copy=8e9, matmul=4e12)
    assert (found.gb_per_s, found.of_copy, found.tflop_per_s, found.of_matmul) == (4.0, 0.5, 2.0, 0.5)
    assert kernels_gpu.report([found]).splitlines()[-1].split("|")[1:-1] == [
        " a      ", " 500000.0 ", " 4    ", " 50%     ", " 2.0     ", " 50%       "
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what it needs where there is no GPU")
def test_without_a_gpu_it_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "benchmarks.kernels_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "benchmarks.kernels_gpu needs a CUDA device and PyPI's torch with triton\n"


@pytest.mark.gpu
def test_it_measures_every_kernel(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    command = [sys.executable, "-m", "benchmarks.kernels_gpu", "--repeats", "3", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["gpu"] == torch.cuda.get_device_name()
    assert {row["name"].split(" ")[0] for row in found["kernels"]} == {
        "rms_norm", "add_rms_norm", "swiglu", "rotary", "write_kv", "decode", "chunks", "top_k_top_p"
    }  # fmt: skip
    assert all(row["seconds"] > 0 and row["gb_per_s"] > 0 for row in found["kernels"])
