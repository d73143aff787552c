"""A real model under the engine: what a request is answered does not depend on what else runs, nor on chunks or preemption."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pagemill import model_files
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import AddRequest, FinishReason, SampledToken, SamplingParams
from pagemill_server.model import load
from tests.server.engine.scripted import run_to_end
from tests.server.tiny import write_tiny_llama


class Loaded(NamedTuple):
    runner: ModelRunner
    limits: EngineLimits

    def engine(self, num_blocks: int | None = None, **config: int) -> Engine:
        """One engine after another may use the same KV tensors; fewer blocks are the first of them."""
        limits = replace(self.limits, num_blocks=num_blocks or self.limits.num_blocks)
        return Engine(self.runner, limits, SchedulerConfig(**config))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path: Path = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    options = ModelOptions("tiny", ("tiny",), dtype="float32", device="cpu")
    cache = CacheConfig(block_size=4, memory_bytes=1 << 20)
    runner, limits, _ = load.load_runner(
        model_files.inspect(path), options, cache, SchedulerConfig(), lambda done, total: None
    )
    return Loaded(runner, limits)


def make_requests(*, greedy: bool) -> list[AddRequest]:
    requests = []
    for i in range(16):
        prompt = tuple((7 * i + 3 * j * j) % 256 for j in range(1 + 5 * i % 23))
        sampling = SamplingParams(
            temperature=0.0 if greedy else 0.9, top_p=1.0 if greedy else 0.95, seed=i, max_tokens=6 + i, logprobs=2
        )
        requests.append(AddRequest(f"r{i}", prompt, sampling, arrival=0.0))
    return requests


Answers = dict[str, list[SampledToken]]


def run(engine: Engine, requests: Iterable[AddRequest]) -> Answers:
    requests = list(requests)
    for request in requests:
        engine.add(request)
    outputs = run_to_end(engine)
    for request in requests:
        assert outputs[request.request_id][-1].finish_reason is FinishReason.LENGTH
    return {id: [token for output in parts for token in output.tokens] for id, parts in outputs.items()}


@pytest.fixture(scope="module", params=[True, False], ids=["greedy", "sampled"])
def alone(request: pytest.FixtureRequest, tiny: Loaded) -> tuple[list[AddRequest], Answers]:
    """The requests, and what each is answered when it is the only one."""
    requests = make_requests(greedy=request.param)
    answers: Answers = {}
    for one in requests:
        answers |= run(tiny.engine(), [one])
    texts = {tuple(token.token_id for token in tokens) for tokens in answers.values()}
    assert len(texts) == 16
    assert max(len(set(text)) for text in texts) > 5, "the model babbles one token: it could hide a mix-up"
    return requests, answers


def test_sixteen_at_once_are_answered_as_each_alone(tiny: Loaded, alone: tuple[list[AddRequest], Answers]) -> None:
    requests, answers = alone
    assert run(tiny.engine(), requests) == answers
    assert run(tiny.engine(max_num_seqs=5), reversed(requests)) == answers


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 17, 64])
def test_chunks_of_any_size_change_nothing(tiny: Loaded, alone: tuple[list[AddRequest], Answers], budget: int) -> None:
    requests, answers = alone
    assert run(tiny.engine(max_num_batched_tokens=budget), requests) == answers


@pytest.mark.parametrize("budget", [4, 33, 512])
@pytest.mark.parametrize("num_blocks", [11, 16, 25])
def test_preemption_changes_nothing(
    tiny: Loaded, alone: tuple[list[AddRequest], Answers], num_blocks: int, budget: int
) -> None:
    requests, answers = alone
    engine = tiny.engine(num_blocks, max_num_batched_tokens=budget)
    assert run(engine, requests) == answers
    if budget > 4:
        assert engine.stats().num_preemptions > 0
