"""A model divided among processes: the same bits in whatever company. Another number of processes rounds otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.computing import needs_native
from tests.server.engine.same_answer.asked import Answers, make_requests
from tests.server.engine.same_answer.company import DISPLACING, Company, LoadedModel, answers_alone, loaded
from tests.server.tiny import write_tiny_llama

REQUESTS = make_requests(20, longest=257)
COMPANIES = {
    "all at once": Company({"max_num_batched_tokens": 512}),
    "in chunks, from the prefix cache": Company(
        {"max_num_batched_tokens": 37, "prefix_caching": True}, order=1, rounds=2, shows=lambda s: s.prefix_cache_hits > 700
    ),
    "swapped": Company(
        {"num_blocks": 24, "num_host_blocks": 100, "policy": DISPLACING, "max_num_seqs": 5},
        order=2, shows=lambda s: s.num_preemptions > 5 and s.fetched_blocks > 10,
    ),
}  # fmt: skip


@pytest.fixture(params=[pytest.param(True, marks=needs_native), False], ids=["native", "torch"], scope="module")
def divided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """Three processes: from three on, the order in which shares are added matters."""
    folder = write_tiny_llama(
        tmp_path_factory.mktemp("tiny"),
        max_position_embeddings=512,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=2352,
    )
    sizes = {"memory_bytes": 8 << 20, "offloading_bytes": 4 << 20}
    with loaded(folder, tensor_parallel_size=3, native=request.param, **sizes) as model:
        yield model


@pytest.fixture(scope="module")
def alone(divided: LoadedModel) -> Answers:
    return answers_alone(divided, REQUESTS)


@pytest.mark.parametrize("name", COMPANIES)
def test_in_company(divided: LoadedModel, alone: Answers, name: str) -> None:
    COMPANIES[name].check(divided, REQUESTS, alone)
