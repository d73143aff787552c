"""A part of a model is a model of its own to whoever asks for sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemill.failures import FailureReason
from pagemill.memory_fit import FitRequest, fit
from pagemill.model_config import Experts
from pagemill.tensor_parallel import divided, indivisible
from tests.pagemill.test_memory_fit import GIB, LLAMA_7B, SMOLLM2

EXPERTS = replace(
    LLAMA_7B, experts=Experts(count=8, chosen=2, intermediate_size=1024, normalised=True, layers=tuple(range(32)))
)


@pytest.mark.parametrize("config", [LLAMA_7B, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_the_parts_are_the_whole_but_for_what_each_has_of_its_own(config: object, processes: int) -> None:
    assert config in (LLAMA_7B, EXPERTS)
    whole = LLAMA_7B if config == LLAMA_7B else EXPERTS
    part = divided(whole, processes)
    own = 2 * 32000 * 4096 + (2 * 32 + 1) * 4096 + (32 * 8 * 4096 if whole.experts is not None else 0)
    assert processes * (part.num_parameters() - own) == whole.num_parameters() - own
    assert processes * part.kv_bytes_per_token(2) == whole.kv_bytes_per_token(2)


def test_one_process_has_the_model() -> None:
    assert divided(LLAMA_7B, 1) is LLAMA_7B


@pytest.mark.parametrize(
    ("config", "processes", "fault"),
    [
        (LLAMA_7B, 32, None),
        (LLAMA_7B, 3, "32 attention heads"),
        (SMOLLM2, 2, "9 attention heads"),
        (SMOLLM2, 3, None),
        (SMOLLM2, 9, "3 key-value heads"),
        (replace(LLAMA_7B, intermediate_size=11010), 4, "11010 MLP columns"),
        (replace(EXPERTS, experts=replace(EXPERTS.experts, intermediate_size=1026)), 4, "1026 expert columns"),  # type: ignore[type-var]
        (replace(LLAMA_7B, native=False), 2, "computed by transformers"),
        (replace(LLAMA_7B, native=False), 1, None),
    ],
)
def test_what_cant_be_divided_is_named(config: object, processes: int, fault: str | None) -> None:
    found = indivisible(config, processes)  # type: ignore[arg-type]
    assert found is None if fault is None else fault in (found or "")


def test_what_cant_be_divided_does_not_fit() -> None:
    failure = fit(FitRequest(SMOLLM2, 2, 24 * GIB, tensor_parallel_size=2)).failure
    assert failure is not None
    assert failure.reason is FailureReason.INVALID_CONFIGURATION
    assert "9 attention heads can't be divided among 2 processes" in failure.message


def test_a_model_too_large_for_one_gpu_fits_two() -> None:
    one = FitRequest(LLAMA_7B, 2, 14 * GIB)
    assert fit(one).failure is not None
    two = fit(replace(one, tensor_parallel_size=2))
    assert two.failure is None
    assert two.kv_bytes_per_token == 256 * 1024
    assert two.weights_bytes == 2 * divided(LLAMA_7B, 2).num_parameters()
