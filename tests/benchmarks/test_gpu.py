"""What of the GPU's benchmark needs no GPU: shapes, the models that it makes, its arithmetic, and what it says without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import gpu_line, logits, model_writer, paged, serving
from benchmarks.gpu.shapes import LLAMA_2_7B, QWEN3_8B, TINY, Shape
from benchmarks.real_model import load
from pagemill.failures import FailureReason
from pagemill.model_files import inspect
from pagemill_server.config import SchedulerConfig

GIB = 1 << 30
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_writer.write(TINY, tmp_path_factory.mktemp("models"), CPU)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(LLAMA_2_7B, 6_738_415_616), (QWEN3_8B, 8_190_735_360)],
    ids=lambda one: getattr(one, "name", ""),
)
def test_shapes_are_those_of_the_models(shape: Shape, parameters: int) -> None:
    """Counts as their authors publish them."""
    assert shape.parameters == parameters
    assert shape.bytes == 2 * parameters
    assert shape.read_per_token == 2 * (parameters - shape.vocab * shape.hidden)


def test_our_own_count_agrees(tiny: Path) -> None:
    files = inspect(tiny)
    assert files.config.num_parameters() == TINY.parameters
    assert files.weights_bytes == TINY.bytes
    assert files.config.native


def test_a_model_is_written_once(tiny: Path) -> None:
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert model_writer.write(TINY, tiny.parent, CPU) == tiny
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before


def test_every_id_has_a_text(tiny: Path) -> None:
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    ids = {*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])}
    assert ids == set(range(TINY.vocab))


def test_our_logits_hold_against_transformers(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert logits.main([str(tiny), "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"]
    assert 0 < found["ours"] < found["scale"]
    assert found["theirs"] > 0
    assert found["same_first"] > 0.8


def test_the_bound_is_one_that_can_be_broken() -> None:
    wanted = [torch.zeros(2, 3)]
    near, far = [torch.full((2, 3), 0.1)], [torch.full((2, 3), 0.5)]
    assert logits.rms(near, wanted) == pytest.approx(0.1)
    assert logits.compare(wanted, near, near, near, "reference").holds
    broken = logits.compare(wanted, near, far, near, "reference")
    assert not broken.holds
    assert broken.decoded == pytest.approx(0.4)


def test_the_same_memory_both_ways() -> None:
    both = paged.limits_of(paged.Load(longest=2048), 300)
    assert [one.num_blocks * one.block_size for one in both] == [8 * 2048] * 2
    assert both[1].num_blocks == 8


def test_paged_runs_more_at_once(tiny: Path) -> None:
    shape = paged.Load(requests=40, longest=256, prompt=(4, 20), output=4)
    model = load(
        str(tiny), kv_tokens=8 * 256, block_size=paged.BLOCK, longest=256, scheduler=SchedulerConfig(max_num_seqs=32)
    )
    contiguous, run = paged.both(model.runner, TINY.vocab, shape, reps=1)
    assert (contiguous.way, run.way) == ("contiguous", "paged")
    assert contiguous.most_at_once == 8
    assert run.most_at_once == 32


def test_blocks_are_predicted_from_the_gpus_size(tiny: Path) -> None:
    small = serving.predicted_blocks(tiny, 2 * GIB, 0.9)
    assert serving.predicted_blocks(tiny, 2 * GIB, 0.45) < small < serving.predicted_blocks(tiny, 4 * GIB, 0.9)
    assert serving.Blocks(small, small, 0.9).equal
    assert not serving.Blocks(small, small - 1, 0.9).equal


@pytest.mark.parametrize(
    ("served", "reason", "in_order"),
    [
        (True, None, True),
        (False, FailureReason.CUDA_OUT_OF_MEMORY, True),
        (False, FailureReason.KV_CACHE_TOO_SMALL, True),
        (False, FailureReason.ENGINE_FAILED, False),
        (False, None, False),
    ],
)
def test_the_edge_is_served_or_ends_with_its_reason(served: bool, reason: FailureReason | None, in_order: bool) -> None:
    assert serving.Edge(0.99, served, reason, "words").in_order is in_order


def test_bandwidth_is_weights_over_the_time_of_a_token() -> None:
    runs = [{"tpot_p50_s": seconds} for seconds in (0.02, 0.01, 0.04)]
    assert serving.bandwidth(LLAMA_2_7B, runs) == pytest.approx(LLAMA_2_7B.read_per_token / 0.02)
    assert serving.bandwidth(LLAMA_2_7B, [{"tpot_p50_s": None}]) is None


def test_a_table_has_ours_beside_theirs() -> None:
    run = {"output_tok_s": 100.0, "ttft_p50_s": 0.1, "ttft_p99_s": 0.2, "itl_p50_s": 0.01, "itl_p99_s": None}
    text = command.table({"pagemill": {"w1": [run]}, "vllm": {"w1": [run]}})
    assert text.count("| w1") == 2
    assert "100.0" in text
    assert "200.0" in text
    assert "| - " in text


def test_results_are_named_by_shape_and_gpu() -> None:
    assert command.file_name("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


@pytest.mark.parametrize(("argv", "words"), [(["--parts", "x"], "no part 'x'"), (["--shapes", "x"], "no shape 'x'")])
def test_a_wrong_call_is_told(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_in_one_line_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == command.EXIT_NO_GPU
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs an NVIDIA GPU of 24 GiB or more" in line
    assert gpu_line.missing() is not None
