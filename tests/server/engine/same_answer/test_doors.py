"""What is asked through `LLM` or through the HTTP server, all at once, is answered with the bits that the engine alone gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pagemill_server import LLM
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput, SampledToken
from pagemill_server.offline.results import TokenLogprobs
from pagemill_server.settings import Settings
from tests.server.api.running import NAME, Running, serving
from tests.server.engine.same_answer.asked import FORMS, make_requests
from tests.server.engine.same_answer.company import loaded, run
from tests.server.tiny import write_tiny_llama

REQUESTS = make_requests(52, pooled=())
MEMORY = 2 << 20  # for a fraction of what all of them need at once
Sequences = dict[tuple[str, int], list[RequestOutput]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=1024, num_key_value_heads=1)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Sequences:
    """Each request by itself: its outputs, by sequence."""
    sequences: Sequences = {}
    with loaded(folder) as model:
        for request in REQUESTS:
            outputs: list[RequestOutput] = []
            run(model.engine(), [request], outputs.extend)
            for output in outputs:
                sequences.setdefault((output.request_id, output.index), []).append(output)
    return sequences


def tokens_of(outputs: Sequence[RequestOutput]) -> list[SampledToken]:
    return [token for output in outputs for token in output.tokens]


def prompt_of(outputs: Sequence[RequestOutput]) -> list[SampledToken]:
    return [token for output in outputs for token in output.prompt_logprobs]


def told(tokens: Sequence[SampledToken]) -> list[dict[int, float | None]]:
    """What is said of each: the likeliest and itself, by id."""
    likeliest: list[dict[int, float | None]] = [{top.token_id: top.logprob for top in token.top} for token in tokens]
    return [said | {token.token_id: token.logprob} for said, token in zip(likeliest, tokens, strict=True)]


def values(listed: TokenLogprobs | None) -> dict[int, float | None]:
    assert listed is not None
    return {token_id: one.logprob for token_id, one in listed.items()}


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
def test_llm(folder: Path, alone: Sequences, policy: str) -> None:
    with LLM(
        str(folder),
        dtype="float32",
        max_num_seqs=9,
        max_num_batched_tokens=83,
        kv_cache_memory_bytes=MEMORY,
        block_size=24,
        kv_offloading_size=0.004,
        scheduling_policy=policy,
    ) as llm:
        results = llm.generate(
            [list(request.prompt_token_ids) for request in REQUESTS],
            [request.sampling for request in REQUESTS],
            priority=[request.priority for request in REQUESTS],
        )
    for request, result in zip(REQUESTS, results, strict=True):
        for answer in result.outputs:
            outputs = alone[request.request_id, answer.index]
            tokens = tokens_of(outputs)
            assert answer.token_ids == tuple(token.token_id for token in tokens)
            assert answer.finish_reason == outputs[-1].finish_reason
            if request.sampling.logprobs is not None:
                assert answer.logprobs is not None
                assert [values(listed) for listed in answer.logprobs] == told(tokens)
        if request.sampling.prompt_logprobs is not None:
            assert result.prompt_logprobs is not None
            outputs = alone[request.request_id, 0]
            assert [values(listed) for listed in result.prompt_logprobs[1:]] == told(prompt_of(outputs))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    settings = Settings(
        ModelOptions(NAME, (NAME,), dtype="float32"),
        CacheConfig(block_size=16, memory_bytes=MEMORY, offloading_bytes=MEMORY),
        SchedulerConfig(max_num_seqs=11, max_num_batched_tokens=61, policy="priority"),
        ServerConfig(),
    )
    with serving(folder, settings=settings) as running:
        yield running


def body_of(request: AddRequest, **more: Any) -> dict[str, Any]:
    """As a client would send it."""
    sampling = request.sampling
    fields = (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
        "n", "max_tokens", "min_tokens", "ignore_eos", "logprobs",
    )  # fmt: skip
    body = {name: getattr(sampling, name) for name in fields} | {
        "model": NAME,
        "prompt": list(request.prompt_token_ids),
        "logit_bias": {str(token_id): bias for token_id, bias in sampling.logit_bias},
        "stop_token_ids": list(sampling.stop_token_ids),
        "priority": request.priority,
        "echo": sampling.max_tokens == 0,  # the only way to ask for no token
    }
    salt = {"cache_salt": request.cache_salt} if request.cache_salt else {}
    return body | salt | (FORMS[sampling.grammar] if sampling.grammar else {}) | more


def asked_at_once(server: Running, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def ask(body: Mapping[str, Any]) -> dict[str, Any]:
        with server.client() as client:
            response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    with ThreadPoolExecutor(26) as threads:
        return list(threads.map(ask, bodies))


def test_the_http_server(server: Running, alone: Sequences) -> None:
    """Numbers cross as JSON, which gives a double back to the bit."""
    bodies = [body_of(request, prompt_logprobs=request.sampling.prompt_logprobs) for request in REQUESTS]
    for request, answer in zip(REQUESTS, asked_at_once(server, bodies), strict=True):
        sampling = request.sampling
        prompt = told(prompt_of(alone[request.request_id, 0]))
        for choice in answer["choices"]:
            outputs = alone[request.request_id, choice["index"]]
            assert choice["finish_reason"] == outputs[-1].finish_reason
            if sampling.prompt_logprobs is not None:
                assert said_of_prompt(choice["prompt_logprobs"][1:]) == prompt
            if sampling.logprobs is not None and sampling.max_tokens:
                assert choice["logprobs"]["token_logprobs"] == [token.logprob for token in shown(outputs)]
    assert server.stats.num_preemptions > 0


def shown(outputs: Sequence[RequestOutput]) -> list[SampledToken]:
    """A token that ended an answer is not part of it."""
    tokens = tokens_of(outputs)
    return tokens[:-1] if outputs[-1].finish_reason is FinishReason.STOP else tokens


def said_of_prompt(listed: Sequence[Mapping[str, Any]]) -> list[dict[int, float | None]]:
    return [{int(token_id): one["logprob"] for token_id, one in entry.items()} for entry in listed]


def test_streamed_through_http(server: Running, alone: Sequences) -> None:
    streamed = [request for request in REQUESTS if request.sampling.max_tokens]
    with ThreadPoolExecutor(26) as threads:
        found = list(threads.map(lambda request: stream(server, body_of(request, stream=True, logprobs=0)), streamed))
    for request, choices in zip(streamed, found, strict=True):
        for index, logprobs in choices.items():
            expected = alone[request.request_id, index]
            if request.sampling.logprobs is not None:
                assert logprobs == [token.logprob for token in shown(expected)]
    assert server.stats.prefix_cache_hits > 0


def stream(server: Running, body: Mapping[str, Any]) -> dict[int, list[float]]:
    """The log-probabilities of each choice's tokens."""
    found: dict[int, list[float]] = {}
    for chunk in server.openai.completions.create(**sent(body)):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                found.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs or [])
    return found


def sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAI's client knows by name, the rest as its extra_body."""
    known = {"model", "prompt", "temperature", "top_p", "n", "max_tokens", "logprobs", "seed", "stream", "logit_bias"}
    return {name: value for name, value in body.items() if name in known} | {
        "extra_body": {name: value for name, value in body.items() if name not in known}
    }
