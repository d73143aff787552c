"""A real model over the block cache: tokens and logprobs are the same bits computed, from the prefix cache, from the host tier, and
with blocks that were swapped out and back in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from pagemill import model_files
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, RequestOutput, SampledToken, SamplingParams
from pagemill_server.engine.tier_costs import FixedCosts
from pagemill_server.model.load import load_runner
from pagemill_server.model.runner import Runner
from tests.server.engine.scripted import run_to_end
from tests.server.tiny import write_tiny_llama

BLOCK = 4
Answers = dict[tuple[str, int], list[SampledToken]]


class Loaded:
    def __init__(self, runner: Runner, limits: EngineLimits) -> None:
        self.runner, self.limits = runner, limits

    def engine(
        self, *, prefix_caching: bool = True, num_blocks: int = 200, num_host_blocks: int = 0, budget: int = 64
    ) -> Engine:
        """One engine after another uses the same tensors, with what earlier ones left in them."""
        limits = replace(self.limits, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        assert limits.num_blocks <= self.limits.num_blocks
        assert limits.num_host_blocks <= self.limits.num_host_blocks
        config = SchedulerConfig(max_num_batched_tokens=budget)
        return Engine(self.runner, limits, config, prefix_caching=prefix_caching, costs=FixedCosts(fetch=True))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    options = ModelOptions("tiny", ("tiny",), dtype="float32", device="cpu")
    cache = CacheConfig(block_size=BLOCK, memory_bytes=1 << 20, offloading_bytes=1 << 20)
    runner, limits, _ = load_runner(
        model_files.inspect(path), options, cache, SchedulerConfig(), lambda done, total: None
    )
    yield Loaded(runner, limits)
    runner.close()


def make_requests() -> list[AddRequest]:
    """Four long beginnings, each shared by four requests; greedy and sampled, one of them with three answers."""
    requests = []
    for number in range(16):
        begin = [(37 * (number % 4) + 3 * j * j) % 256 for j in range(41)]
        tail = [(11 * number + j) % 256 for j in range(number % 5)]
        sampling = SamplingParams(
            temperature=0.9 if number % 3 else 0.0,
            top_p=0.95,
            seed=number,
            max_tokens=6 + number,
            logprobs=2,
            n=3 if number == 10 else 1,
            repetition_penalty=1.2 if number == 7 else 1.0,
        )
        requests.append(AddRequest(f"r{number:02}", tuple(begin + tail), sampling, arrival=0.0))
    return requests


def collect(outputs: Iterable[RequestOutput]) -> Answers:
    answers: Answers = {}
    for output in outputs:
        answers.setdefault((output.request_id, output.index), []).extend(output.tokens)
    return answers


def run(engine: Engine, requests: Iterable[AddRequest]) -> Answers:
    for request in requests:
        engine.add(request)
    return collect(output for parts in run_to_end(engine).values() for output in parts)


def named_anew(requests: Iterable[AddRequest]) -> list[AddRequest]:
    return [replace(request, request_id=request.request_id + " again") for request in requests]


def named_as_before(answers: Answers) -> Answers:
    return {(request_id.removesuffix(" again"), index): tokens for (request_id, index), tokens in answers.items()}


@pytest.fixture(scope="module")
def computed(tiny: Loaded) -> Answers:
    """Each request alone, nothing cached."""
    answers: Answers = {}
    for request in make_requests():
        engine = tiny.engine(prefix_caching=False)
        answers |= run(engine, [request])
        if request.sampling.n == 1:
            assert engine.stats().prefix_cache_hits == 0
    assert len({tuple(token.token_id for token in tokens) for tokens in answers.values()}) == 18
    return answers


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_the_prefix_cache_changes_no_answer(tiny: Loaded, computed: Answers, budget: int) -> None:
    engine = tiny.engine(budget=budget)
    requests = make_requests()
    assert run(engine, requests) == computed
    first = engine.stats().prefix_cache_hits
    assert first > 0
    assert named_as_before(run(engine, reversed(named_anew(requests)))) == computed
    assert engine.stats().prefix_cache_hits - first >= 16 * 40


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_the_host_tier_changes_no_answer(tiny: Loaded, computed: Answers, budget: int) -> None:
    """The device holds a few requests only: beginnings are evicted, and fetched when they are asked for again."""
    engine = tiny.engine(num_blocks=40, num_host_blocks=tiny.limits.num_host_blocks, budget=budget)
    requests = make_requests()
    assert run(engine, requests) == computed
    assert named_as_before(run(engine, named_anew(requests))) == computed
    stats = engine.stats()
    assert stats.offloaded_blocks > 40
    assert stats.fetched_blocks > 20
    assert stats.host_hits > 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_blocks_that_a_preemption_took_come_back_from_the_host_tier(
    tiny: Loaded, computed: Answers, prefix_caching: bool
) -> None:
    engine = tiny.engine(
        num_blocks=30, num_host_blocks=tiny.limits.num_host_blocks, prefix_caching=prefix_caching, budget=512
    )
    assert run(engine, make_requests()) == computed
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.fetched_blocks > 0


def test_a_prompt_whose_logprobs_are_wanted_has_them_all_whatever_is_cached(tiny: Loaded) -> None:
    """They are the same bits beside a warm cache as beside a cold one, at every length around a block's end."""
    base = make_requests()[0]
    for length in range(3 * BLOCK - 1, 4 * BLOCK + 2):
        request = replace(
            base,
            prompt_token_ids=base.prompt_token_ids[:length],
            sampling=replace(base.sampling, prompt_logprobs=1, max_tokens=3),
        )
        cold = logprobs_of_prompt(tiny.engine(budget=5), request)
        assert len(cold) == length - 1
        warm = tiny.engine(budget=5)
        run(warm, [replace(base, request_id="before")])
        assert logprobs_of_prompt(warm, request) == cold
        assert warm.stats().prefix_cache_hits == 0


def logprobs_of_prompt(engine: Engine, request: AddRequest) -> list[SampledToken]:
    engine.add(request)
    return [token for output in run_to_end(engine)[request.request_id] for token in output.prompt_logprobs]
