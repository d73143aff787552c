"""A whole model on a GPU: the CPU's numbers within rounding, with graphs and without, and memory as it was predicted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.request import SamplingParams
from pagemill_server.memory import StartMemory
from pagemill_server.model import draw as torch_draw
from pagemill_server.model import operations
from pagemill_server.model.load import load_runner
from pagemill_server.model.runner import Runner
from tests.server.model.stepping import Stepper
from tests.server.tiny import write_tiny_llama

pytestmark = pytest.mark.gpu

PROMPTS = {1: [5, 6, 7], 2: list(range(40, 77)), 3: [9]}


def loaded(path: Path, device: str, dtype: str = "float32", **cache: float) -> tuple[Runner, Stepper, StartMemory]:
    runner, limits, memory = load_runner(
        inspect(path),
        ModelOptions(str(path), ("test",), dtype=dtype, device=device),
        CacheConfig(block_size=16, memory_bytes=4 << 20, gpu_memory_utilization=cache.get("utilization", 0.2)),
        SchedulerConfig(max_num_seqs=8),
        lambda done, total: None,
    )
    return runner, Stepper(runner, min(200, limits.num_blocks), 16), memory


@pytest.mark.parametrize("shape", [{}, {"num_key_value_heads": 1}, {"head_dim": 64}], ids=["gqa", "mqa", "wide"])
def test_logits_are_the_cpus(tmp_path: Path, shape: dict[str, int]) -> None:
    folder = write_tiny_llama(tmp_path, **shape)
    chunks = list(PROMPTS.items())
    _, there, _ = loaded(folder, "cuda")
    _, here, _ = loaded(folder, "cpu")
    for found, wanted in zip(there.logits(chunks), here.logits(chunks), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, atol=2e-3, rtol=2e-3)
    singles = [(seq_id, [3]) for seq_id in PROMPTS]  # replayed by a graph, padded from three to four
    for found, wanted in zip(there.logits(singles), here.logits(singles), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, atol=2e-3, rtol=2e-3)


def test_graphs_are_captured_before_it_serves_and_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_llama(tmp_path)
    with caplog.at_level(logging.INFO):
        runner, stepper, _ = loaded(folder, "cuda")
    assert "captured 4 CUDA graphs" in caplog.text
    replayed = stepper.greedy(PROMPTS, 12)
    for seq_id in PROMPTS:
        stepper.release(seq_id)
    runner._graphs = None  # type: ignore[attr-defined]
    assert stepper.greedy(PROMPTS, 12) == replayed


def test_memory_is_as_predicted(tmp_path: Path) -> None:
    _, _, memory = loaded(write_tiny_llama(tmp_path), "cuda", "bfloat16")
    assert memory.measured.weights is not None
    assert memory.predicted.weights is not None
    assert abs(memory.measured.weights - memory.predicted.weights) < 1 << 20, (
        "rotary tables, and an allocator's rounding"
    )
    assert memory.measured.kv_cache == memory.predicted.kv_cache
    assert memory.measured.activation is not None
    assert memory.predicted.activation is not None
    assert memory.measured.activation <= memory.predicted.activation


def test_a_share_that_is_not_free_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(free - total // 10, dtype=torch.uint8, device="cuda")
    with pytest.raises(PagemillError) as caught:
        loaded(folder, "cuda", utilization=0.9)
    del taken
    assert caught.value.failure.reason is FailureReason.CUDA_OUT_OF_MEMORY


def test_tokens_are_drawn_as_on_the_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((64, 5000), generator=generator) * 3
    numbers = torch.rand(64, generator=generator, dtype=torch.float64).tolist()
    settings = [
        SamplingParams(
            temperature=0.2 + place / 32, top_k=place % 3 * 20, top_p=1 - place % 4 / 8, min_p=place % 2 / 50
        )
        for place in range(64)
    ]
    found = operations.draw(logits.cuda(), settings, numbers)
    wanted = torch_draw.draw(logits, settings, numbers)
    assert sum(one == other for one, other in zip(found, wanted, strict=True)) >= 62, "but for exp's last bit"
