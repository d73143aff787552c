"""The promise on the real models: fifty requests to SmolLM2-135M and texts for MiniLM, the same bits alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pagemill_server import LLM
from pagemill_server.engine.request import AddRequest, SamplingParams
from tests.server.computing import needs_native
from tests.server.engine.same_answer.asked import Answers, make_requests
from tests.server.engine.same_answer.company import (
    DISPLACING,
    Company,
    LoadedModel,
    answers_alone,
    computing_on,
    loaded,
)
from tests.server.real_model import real_encoder, real_model

pytestmark = pytest.mark.model

TEXTS = [
    "a cat",
    "Two WORDS, and more: dogs?",
    "why is the sky blue, and the sea?",
    *("x " * n for n in (1, 15, 31, 90, 250)),
]
COMPANIES = {
    "all at once": Company({"max_num_batched_tokens": 512}),
    "in small chunks, in any order": Company({"max_num_batched_tokens": 47, "max_num_seqs": 13}, order=1),
    "preempted and swapped, on two threads": Company(
        {"num_blocks": 14, "num_host_blocks": 60, "policy": DISPLACING, "max_num_batched_tokens": 256, "max_num_seqs": 8},
        order=2, threads=2, shows=lambda s: s.num_preemptions > 5 and s.fetched_blocks > 5,
    ),
    "from the prefix cache and the host tier": Company(
        {"num_blocks": 20, "num_host_blocks": 60, "prefix_caching": True, "max_num_batched_tokens": 128},
        order=3, rounds=2, shows=lambda s: s.prefix_cache_hits > 1000 and s.host_hits > 200,
    ),
}  # fmt: skip


def make() -> list[AddRequest]:
    """As for the tiny models, with fewer tokens to wait for; one is longer than a tile."""
    made = [replace(request, sampling=shortened(request.sampling)) for request in make_requests(51, longest=100)]
    return [*made[:-1], replace(made[-1], prompt_token_ids=tuple(range(1000, 1300)))]


def shortened(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, max_tokens=min(sampling.max_tokens, 5), min_tokens=min(sampling.min_tokens, 2))


KINDS: dict[str, dict[str, Any]] = {
    "torch": {"native": False},
    "native": {},
    "native, weights of 16 bits": {"dtype": "auto", "bfloat16": False},
    "native, bfloat16": {"dtype": "bfloat16"},
    "native, int8": {"quantization": "int8"},
    "native, int8 in bfloat16": {"dtype": "bfloat16", "quantization": "int8"},
}


@pytest.fixture(
    params=[pytest.param(k, marks=[needs_native] if KINDS[k].get("native", True) else []) for k in KINDS],
    scope="module",
)
def smollm2(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    sizes: dict[str, Any] = {
        "block_size": 32,
        "memory_bytes": 160 << 20,
        "offloading_bytes": 100 << 20,
        "max_model_len": 512,
    }
    with loaded(real_model().path, **sizes, **KINDS[request.param]) as model:
        yield model


@pytest.fixture(scope="module")
def alone(smollm2: LoadedModel) -> Answers:
    return answers_alone(smollm2, make())


@pytest.mark.parametrize("name", COMPANIES)
def test_smollm2(smollm2: LoadedModel, alone: Answers, name: str) -> None:
    COMPANIES[name].check(smollm2, make(), alone)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_native)])
@pytest.mark.parametrize("threads", [1, 2])
def test_minilm(threads: int, dtype: str) -> None:
    with LLM(str(real_encoder().path), dtype=dtype, max_num_batched_tokens=100) as llm, computing_on(threads):
        texts = TEXTS * 3
        together = [result.outputs.embedding for result in llm.embed(texts)]
        with computing_on(1):
            alone = {text: llm.embed(text)[0].outputs.embedding for text in TEXTS}
        assert together == [alone[text] for text in texts]
