"""The promise as a table: more than fifty requests with every sampling setting are answered with the same bits in whatever company.

Tokens, their log-probabilities and those of prompts, each request alone on an empty cache, against: batches, orders of arrival,
chunk sizes, preemption computed again and swapped, the prefix cache on the device and from the host tier, one thread and two.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from pagemill import model_files
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, SampledToken, SamplingParams
from pagemill_server.model.load import load_runner
from tests.server.engine.scripted import run_to_end
from tests.server.engine.test_tiny_model_caching import BLOCK, Loaded
from tests.server.tiny import write_tiny_llama

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "logprobs": 0},
    {"min_p": 0.05, "temperature": 1.5},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"repetition_penalty": 1.3, "top_p": 0.99},
    {"logit_bias": ((65, 4.0), (66, -50.0)), "top_k": 100, "top_p": 0.8},
    {"min_tokens": 6, "stop_token_ids": tuple(range(0, 256, 3))},
    {"n": 3, "temperature": 1.2},
    {"prompt_logprobs": 2},
    {"n": 2, "repetition_penalty": 1.1, "prompt_logprobs": 0},
    {"temperature": 0.0, "frequency_penalty": 1.0, "n": 2},
]
Answers = dict[tuple[str, int], list[SampledToken]]


def make_requests() -> list[AddRequest]:
    """Four of each setting, of lengths that end within, at and after a block; each beginning is shared by some."""
    made = []
    for number in range(4 * len(SETTINGS)):
        length = (1, 7, 8, 33, 50)[number % 5] + number // 13
        prompt = tuple((29 * (number % 5) + 3 * j * j) % 256 for j in range(length))
        sampling = SamplingParams(
            **{"logprobs": 2, "seed": number % 7, "max_tokens": 5 + number % 11} | SETTINGS[number % len(SETTINGS)]
        )
        made.append(AddRequest(f"r{number:02}", prompt, sampling, arrival=0.0))
    return made


REQUESTS = make_requests()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    options = ModelOptions("tiny", ("tiny",), dtype="float32", device="cpu")
    cache = CacheConfig(block_size=BLOCK, memory_bytes=1 << 20, offloading_bytes=1 << 20)
    runner, limits, _ = load_runner(
        model_files.inspect(path), options, cache, SchedulerConfig(), lambda done, total: None
    )
    torch.set_num_threads(1)
    yield Loaded(runner, limits)
    runner.close()


def run(engine: Engine, requests: Iterable[AddRequest]) -> Answers:
    """By request and sequence; a prompt's log-probabilities stand before the first sequence's tokens."""
    for request in requests:
        engine.add(request)
    answers: Answers = {}
    for parts in run_to_end(engine).values():
        for output in parts:
            answers.setdefault((output.request_id, output.index), []).extend((*output.prompt_logprobs, *output.tokens))
    return answers


@pytest.fixture(scope="module")
def alone(tiny: Loaded) -> Answers:
    answers: Answers = {}
    for request in REQUESTS:
        answers |= run(tiny.engine(prefix_caching=False), [request])
    assert len(REQUESTS) > 50
    assert len({tuple(token.token_id for token in tokens) for tokens in answers.values()}) > 60
    return answers


def test_all_at_once(tiny: Loaded, alone: Answers) -> None:
    assert run(tiny.engine(prefix_caching=False, budget=512), REQUESTS) == alone


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_some_coming_later(tiny: Loaded, alone: Answers, seed: int) -> None:
    chance = random.Random(seed)
    waiting = chance.sample(REQUESTS, len(REQUESTS))
    engine, found = tiny.engine(prefix_caching=False), Answers()
    while waiting or engine.has_work:
        for _ in range(min(len(waiting), chance.choice((0, 1, 5)))):
            engine.add(waiting.pop())
        for output in engine.step():
            key = (output.request_id, output.index)
            found.setdefault(key, []).extend((*output.prompt_logprobs, *output.tokens))
    assert found == alone


@pytest.mark.parametrize("budget", [2, 7, 64])
def test_in_chunks_of_any_size(tiny: Loaded, alone: Answers, budget: int) -> None:
    assert run(tiny.engine(prefix_caching=False, budget=budget), REQUESTS) == alone


@pytest.mark.parametrize("num_host_blocks", [0, 200], ids=["computed again", "swapped"])
def test_after_preemption(tiny: Loaded, alone: Answers, num_host_blocks: int) -> None:
    engine = tiny.engine(prefix_caching=False, num_blocks=40, num_host_blocks=num_host_blocks, budget=512)
    assert run(engine, REQUESTS) == alone
    assert engine.stats().num_preemptions > 0
    assert (engine.stats().fetched_blocks > 0) is (num_host_blocks > 0)


@pytest.mark.parametrize("budget", [16, 512])
def test_from_the_prefix_cache(tiny: Loaded, alone: Answers, budget: int) -> None:
    engine = tiny.engine(budget=budget)
    for _ in range(2):
        assert run(engine, REQUESTS) == alone
    assert engine.stats().prefix_cache_hits > 0


def test_from_the_host_tier(tiny: Loaded, alone: Answers) -> None:
    engine = tiny.engine(num_blocks=40, num_host_blocks=200)
    for _ in range(2):
        assert run(engine, REQUESTS) == alone
    assert engine.stats().host_hits > 0


def test_on_two_threads(tiny: Loaded, alone: Answers) -> None:
    torch.set_num_threads(2)
    try:
        assert run(tiny.engine(prefix_caching=False, budget=512), REQUESTS) == alone
    finally:
        torch.set_num_threads(1)
