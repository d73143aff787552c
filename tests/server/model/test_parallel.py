"""A model divided among processes is the same model: equal greedy tokens, logits within 1e-5 of one process's.

Two real processes over gloo, on tiny random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill.failures import FailureReason, PagemillError
from tests.server.model.stepping import Stepper, load, step_of
from tests.server.tiny import write_tiny_llama

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


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4, "torch_dtype": "bfloat16"},
    ],
    ids=["gqa", "untied-biases", "mha-stored-in-bfloat16"],
)
def test_two_processes_answer_as_one(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = write_tiny_llama(tmp_path, shards=2, **overrides)
    (one, tokens), (two, same) = answers(folder, 1), answers(folder, 2)
    for alone, together in zip(one, two, strict=True):
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert same == tokens
