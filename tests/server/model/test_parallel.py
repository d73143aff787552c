"""A model divided among processes is the same model: equal greedy tokens, logits within 1e-5 (of the largest) of one process's.

Two real processes over gloo, on tiny random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill.tensor_info import TensorInfo
from pagemill.tensor_parallel import divided
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, EngineStats, SamplingParams
from pagemill_server.engine.tier_costs import FixedCosts
from pagemill_server.model import load as load_module
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.families import make_model
from pagemill_server.model.load import load_runner
from pagemill_server.model.parallel import ALONE, Group, Parallel
from tests.server.engine.scripted import run_to_end
from tests.server.model.stepping import Stepper, load
from tests.server.model.tiny_families import NATIVE, write_model
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_gguf import write_tiny_gguf

PROMPTS = {1: [5, 17, 200, 33, 7] * 9, 2: [101, 9], 3: list(range(40, 140))}


@contextmanager
def loaded(path: Path, processes: int, **options: Any) -> Iterator[Stepper]:
    runner, stepper = load(path, tensor_parallel_size=processes, memory_bytes=4 << 20, **options)
    try:
        yield stepper
    finally:
        runner.close()


def answers(path: Path, processes: int, **options: Any) -> tuple[list[torch.Tensor], dict[int, list[int]]]:
    """Logits of a mixed step in two chunks, then greedy tokens of other sequences."""
    with loaded(path, processes, **options) as stepper:
        first = stepper.logits([(seq_id, prompt[:20]) for seq_id, prompt in PROMPTS.items()])
        second = stepper.logits([(seq_id, prompt[20:]) for seq_id, prompt in PROMPTS.items() if prompt[20:]])
        for seq_id in PROMPTS:
            stepper.release(seq_id)
        return first + second, stepper.greedy({10 + seq_id: prompt for seq_id, prompt in PROMPTS.items()}, 12)


def check(path: Path) -> None:
    (one, tokens), (two, same) = answers(path, 1), answers(path, 2)
    for alone, together in zip(one, two, strict=True):
        assert (together - alone).abs().max() <= 1e-5 * alone.abs().max()  # sums are rounded in another order
    assert same == tokens


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}],
    ids=["gqa", "untied-biases-mha"],
)
def test_two_processes_answer_as_one(tmp_path: Path, overrides: dict[str, Any]) -> None:
    check(write_tiny_llama(tmp_path, shards=2, torch_dtype="bfloat16", **overrides))


def test_company_and_chunks_change_no_bit(tmp_path: Path) -> None:
    prompt = list(range(60))
    with loaded(write_tiny_llama(tmp_path), 2) as stepper:
        (alone,) = stepper.logits([(1, prompt)])
        cuts = [(0, 1), (1, 20), (20, 21), (21, 60)]
        parts = [stepper.logits([(2, prompt[begin:end]), (100 + begin, [5] * 7)])[0] for begin, end in cuts]
    assert torch.equal(torch.cat(parts), alone)


@pytest.mark.parametrize("family", ["qwen3 moe", "gemma3"])
def test_so_they_do_for_other_families(tmp_path: Path, family: str) -> None:
    name, fields = NATIVE[family]
    check(write_model(tmp_path, name, fields | {"num_key_value_heads": 2}))


def test_a_gguf_is_divided_too(tmp_path: Path) -> None:
    """Its rows are stored in another order, and its columns in blocks that share a scale."""
    check(write_tiny_gguf(tmp_path, quantization="Q8_0"))


@pytest.mark.parametrize(
    ("overrides", "processes", "words"),
    [
        ({}, 3, "4 attention heads can't be divided among 3 processes"),
        ({}, 4, "2 key-value heads can't be divided among 4 processes"),
        ({"intermediate_size": 97}, 2, "97 MLP columns can't be divided among 2 processes"),
    ],
)
def test_what_cant_be_divided_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], processes: int, words: str
) -> None:
    monkeypatch.setattr(load_module, "Part", None)
    with pytest.raises(PagemillError, match=words) as error:
        load(write_tiny_llama(tmp_path, **overrides), tensor_parallel_size=processes)
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_rows_sum_is_the_same_bits_in_any_batch_and_process(tmp_path: Path, size: int) -> None:
    def sums(rank: int) -> list[torch.Tensor]:
        group, share = Group(), torch.randn(513, 24, generator=torch.Generator().manual_seed(rank))
        group.meet(tmp_path / "meet", rank, size)
        return [group.add_up(share[:rows].clone()) for rows in (513, 1, 2, 7, 64, 100)]

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(sums, range(size)))
    whole = found[0][0]
    for each in found:
        for some in each:
            assert torch.equal(some, whole[: len(some)])


@pytest.mark.parametrize("stored", ["float32", "gguf"])
def test_each_process_takes_its_own_slice(tmp_path: Path, stored: str) -> None:
    """Together they have every number once; rows are never read by the other."""
    files = inspect(write_tiny_gguf(tmp_path) if stored == "gguf" else write_tiny_llama(tmp_path))
    names, layer = ("q_proj", "k_proj", "v_proj"), "model.layers.1.self_attn"
    weights = [f"{layer}.{name}.weight" for name in names]

    def checkpoint(rank: int, size: int) -> Checkpoint:
        place = Parallel(rank, size, Group()) if size > 1 else ALONE
        return Checkpoint(files, torch.float32, torch.device("cpu"), parallel=place)

    whole = checkpoint(0, 1)
    projections = [whole.take(name, rows, 64) for name, rows in zip(weights, (64, 32, 32), strict=True)]
    out = whole.take(f"{layer}.o_proj.weight", 64, 64)
    for rank in range(2):
        mine = checkpoint(rank, 2)
        expected = torch.cat([projection.chunk(2)[rank] for projection in projections])
        assert torch.equal(mine.take_rows(weights, (32, 16, 16), 64), expected)
        assert torch.equal(mine.take_columns(f"{layer}.o_proj.weight", 64, 32), out.chunk(2, dim=1)[rank])


def test_a_processs_weights_are_what_is_predicted(tmp_path: Path) -> None:
    """What a part takes of the checkpoint, in bytes, against the parameters that memory_fit counts for it."""
    files = inspect(write_tiny_llama(tmp_path, attention_bias=True))
    part = divided(files.config, 2)
    checkpoint = Checkpoint(files, torch.float32, torch.device("cpu"), parallel=Parallel(1, 2, Group()))
    taken: list[int] = []
    made = checkpoint._made

    def counted(name: str, info: TensorInfo, tensor: torch.Tensor, processes: int) -> torch.Tensor:
        taken.append(tensor.numel())
        return made(name, info, tensor, processes)

    checkpoint._made = counted  # type: ignore[method-assign]
    make_model(checkpoint, part, 256)
    assert sum(taken) == part.num_parameters()


def test_the_caches_of_all_processes_move_together(tmp_path: Path) -> None:
    """Prefix hits on the device and from the host tier, after evictions: as without any cache. One process would not notice
    a worker whose blocks were never moved, but its answers would be others."""
    path = write_tiny_llama(tmp_path)
    prompts = [[(37 * (number // 2 % 4) + 3 * j * j) % 256 for j in range(61)] + [number] for number in range(16)]

    def tokens(cache: CacheConfig, num_blocks: int | None) -> tuple[list[list[int]], EngineStats]:
        options = ModelOptions("tiny", ("tiny",), tensor_parallel_size=2)
        runner, limits, _ = load_runner(inspect(path), options, cache, SchedulerConfig(), lambda done, total: None)
        try:
            limits = replace(limits, num_blocks=num_blocks or limits.num_blocks)
            engine = Engine(
                runner, limits, SchedulerConfig(), prefix_caching=cache.prefix_caching, costs=FixedCosts(fetch=True)
            )
            answers = []
            for number, prompt in enumerate(prompts):
                engine.add(AddRequest(f"r{number}", tuple(prompt), SamplingParams(temperature=0.0, max_tokens=6), 0.0))
                outputs = run_to_end(engine)[f"r{number}"]
                answers.append([token.token_id for output in outputs for token in output.tokens])
            return answers, engine.stats()
        finally:
            runner.close()

    plain, _ = tokens(CacheConfig(4, 1 << 20, prefix_caching=False), None)
    cached, stats = tokens(CacheConfig(4, 1 << 20, offloading_bytes=1 << 20), 40)
    assert cached == plain
    assert stats.host_hits > 0
    assert stats.prefix_cache_hits > stats.host_hits
