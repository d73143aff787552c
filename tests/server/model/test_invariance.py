"""A sequence's logits are the same bits alone, in a batch, in another order, and however its tokens are cut into steps.

float32 on CPU, on one thread and on two. What random steps are compared with is each sequence in one step of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pagemill_server.engine.request import SamplingParams
from tests.server.computing import computing, needs_native
from tests.server.model.stepping import Stepper, load, step_of
from tests.server.model.tiny_families import NATIVE, write_model
from tests.server.tiny import write_tiny_llama

LENGTHS = (5, 64, 1, 130, 331)  # around the spans of 64 and the tiles of 256 keys
COUNTS = (1, 1, 1, 2, 3, 17, 50, 100)  # tokens that a sequence gets in a step
# name: (threads, block size, config)
LLAMAS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "gqa": (1, 32, {}),
    "mha": (2, 1, {"num_key_value_heads": 4}),
    "mqa": (2, 16, {"num_key_value_heads": 1}),
    # An inner size of 1536 is where one row alone differs on AVX-512; 9/3 heads of 64 are SmolLM2's.
    "smollm2": (
        2,
        24,
        {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536},
    ),
    "biases": (1, 512, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
}
# name of `tiny_families.NATIVE`: (threads, block size)
FAMILIES = {
    "mistral with a window": (2, 7),
    "qwen2 with windows": (1, 16),
    "qwen3 with windows and biases": (2, 32),
    "qwen3 moe": (2, 16),
    "qwen3 moe, some layers dense": (1, 24),
    "gemma3": (2, 32),
}


class Case:
    """A model, prompts, and each prompt's logits when it is computed alone in one step."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        generator = torch.Generator().manual_seed(1)
        self.prompts = {i: torch.randint(0, 264, (n,), generator=generator).tolist() for i, n in enumerate(LENGTHS)}
        self.alone = {}
        for index, tokens in self.prompts.items():
            (self.alone[index],) = stepper.logits([(index, tokens)])
        self.release()

    def release(self) -> None:
        for index in self.prompts:
            self.stepper.release(index)


@pytest.fixture(params=[pytest.param(True, marks=needs_native), False], ids=["native", "torch"], scope="module")
def computed(request: pytest.FixtureRequest) -> bool:
    """Whether our kernels compute."""
    return bool(request.param)


@pytest.fixture(params=[*LLAMAS, *FAMILIES], scope="module")
def case(request: pytest.FixtureRequest, computed: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder, name = tmp_path_factory.mktemp("tiny"), request.param
    if name in LLAMAS:
        threads, block_size, shape = LLAMAS[name]
        write_tiny_llama(folder, max_position_embeddings=512, **shape)
    else:
        threads, block_size = FAMILIES[name]
        write_model(folder, *NATIVE[name])
    before = torch.get_num_threads()
    with computing(native=computed, threads=threads):
        _, stepper = load(folder, block_size=block_size)
    yield Case(stepper)
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", [0, 1])
def test_any_cut_into_steps_gives_the_same_bits(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    done = dict.fromkeys(case.prompts, 0)
    while left := [index for index, tokens in case.prompts.items() if done[index] < len(tokens)]:
        rng.shuffle(left)
        picked = left[: rng.randint(1, len(left))]
        step = [(i, case.prompts[i][done[i] : done[i] + rng.choice(COUNTS)]) for i in picked]
        for (index, tokens), logits in zip(step, case.stepper.logits(step), strict=True):
            first, last = done[index], done[index] + len(tokens)
            assert torch.equal(logits, case.alone[index][first:last]), f"sequence {index}, tokens {first} to {last}"
            done[index] = last
    case.release()


def test_sampled_tokens_and_logprobs_are_the_same_alone_and_together(case: Case) -> None:
    settings = [
        SamplingParams(temperature=0.0, logprobs=3),
        SamplingParams(temperature=0.8, logprobs=0),
        SamplingParams(temperature=1.3, top_k=20),
        SamplingParams(temperature=1.0, top_p=0.7, logprobs=2),
        SamplingParams(temperature=1.0, top_k=50, top_p=0.9),
    ]

    def generate(indices: list[int]) -> dict[int, list[Any]]:
        tokens: dict[int, list[Any]] = {index: [] for index in indices}
        pending: dict[int, list[int]] = {index: case.prompts[index] for index in indices}
        for position in range(8):
            step = [case.stepper.schedule(i, pending[i], settings[i], position) for i in indices]
            for index, token in case.stepper.runner.run(step_of(step)).sampled.items():
                tokens[index].append(token)
                pending[index] = [token.token_id]
        for index in indices:
            case.stepper.release(index)
        return tokens

    together = generate([3, 0, 4, 1, 2])
    for index in case.prompts:
        assert generate([index]) == {index: together[index]}
