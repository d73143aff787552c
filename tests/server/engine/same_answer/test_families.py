"""Every native family beside Llama, its windows, norms and experts: the same bits alone and in three companies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.computing import needs_native
from tests.server.engine.same_answer.asked import Answers, make_requests
from tests.server.engine.same_answer.company import DISPLACING, Company, LoadedModel, answers_alone, loaded
from tests.server.model.tiny_families import NATIVE, write_model

REQUESTS = make_requests(20, longest=257)  # beyond the windows of 40 tokens, and beyond a tile
# Names of NATIVE, and the block size.
FAMILIES = {
    "mistral with a window": 16,
    "qwen2 with windows": 32,
    "qwen3 with windows and biases": 24,
    "qwen3 moe, some layers dense": 32,
    "gemma3": 7,
}
COMPANIES = {
    "all at once, on two threads": Company({"max_num_batched_tokens": 512}, threads=2),
    "in chunks, from the prefix cache": Company(
        {"max_num_batched_tokens": 37, "prefix_caching": True}, order=1, rounds=2, shows=lambda s: s.prefix_cache_hits > 700
    ),
}  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "native": {},
    "native, bfloat16": {"dtype": "bfloat16"},
    "torch": {"native": False},
}


@pytest.fixture(
    params=[pytest.param(k, marks=[needs_native] if KINDS[k].get("native", True) else []) for k in KINDS],
    scope="module",
)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(params=FAMILIES, scope="module")
def family(
    request: pytest.FixtureRequest, kind: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadedModel]:
    folder = write_model(tmp_path_factory.mktemp("tiny"), *NATIVE[request.param])
    with loaded(
        folder,
        block_size=FAMILIES[request.param],
        memory_bytes=8 << 20,
        offloading_bytes=4 << 20,
        **kind,
    ) as model:
        yield model


@pytest.fixture(scope="module")
def alone(family: LoadedModel) -> Answers:
    return answers_alone(family, REQUESTS)


@pytest.mark.parametrize("name", COMPANIES)
def test_in_company(family: LoadedModel, alone: Answers, name: str) -> None:
    COMPANIES[name].check(family, REQUESTS, alone)


def test_swapped_in_small_memory(family: LoadedModel, alone: Answers) -> None:
    size = family.limits.block_size
    Company(
        {
            "num_blocks": -(-360 // size),
            "num_host_blocks": min(family.limits.num_host_blocks, 3000 // size),
            "policy": DISPLACING,
            "max_num_seqs": 5,
        },
        order=2,
        shows=lambda s: s.num_preemptions > 5 and s.fetched_blocks > 10,
    ).check(family, REQUESTS, alone)
