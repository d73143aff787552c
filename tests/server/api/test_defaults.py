"""A request that names no sampling gets the model's own; one that names any has its own word; no answer is beyond the bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemill_server import LLM, SamplingParams
from pagemill_server.config import ChatOptions
from pagemill_server.engine.request import AddRequest
from tests.server.api.running import Running, serving, settings_for
from tests.server.tiny import write_tiny_llama

SAID = {"temperature": 0.0, "top_k": 7, "repetition_penalty": 1.3, "max_new_tokens": 20}
CHAT = {"model": "tiny/llama", "messages": [{"role": "user", "content": "once"}], "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    (folder / "generation_config.json").write_text(json.dumps(SAID))
    return folder


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[Running]:
    with serving(folder, settings=replace(settings_for(folder), chat=ChatOptions(**options))) as server:
        yield server


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with served(folder) as running:
        yield running


@pytest.fixture(scope="module")
def bounded(folder: Path) -> Iterator[Running]:
    with served(folder, generation_overrides=(("max_new_tokens", 5),)) as running:
        yield running


def asked(server: Running, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> SamplingParams:
    """What reaches the engine."""
    seen: list[AddRequest] = []
    assert server.service.loaded is not None
    engine = server.service.loaded.engine
    submit = engine.submit
    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", lambda request: seen.append(request) or submit(request))  # type: ignore[func-returns-value]
        with server.client() as client:
            answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return seen[0].sampling


@pytest.mark.parametrize(
    ("path", "body", "length"),
    [
        ("/v1/chat/completions", CHAT, 20),
        ("/v1/completions", {"prompt": "once"}, 16),  # OpenAI's own default
        ("/v1/responses", {"model": "alias", "input": "once"}, 20),
    ],
)
def test_what_is_not_named_is_the_models(
    server: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], length: int
) -> None:
    sampling = asked(server, path, body, monkeypatch)
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.0, 7, 1.3)
    assert sampling.max_tokens == length


def test_what_is_named_is_the_requests(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"temperature": 0.5, "top_k": 0, "repetition_penalty": 1, "max_tokens": 30}
    sampling = asked(server, "/v1/chat/completions", CHAT | own, monkeypatch)
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.5, 0, 1.0)
    assert sampling.max_tokens == 30  # the file's is what is given, not a bound
    null = asked(server, "/v1/chat/completions", CHAT | {"temperature": None}, monkeypatch)
    assert null.temperature == 0.0


def test_answers_differ_as_the_file_says(folder: Path, server: Running) -> None:
    greedy = {"temperature": 0, "repetition_penalty": 1.3, "max_tokens": 20}
    with served(folder, generation_config="vllm") as plain, server.client() as ours, plain.client() as openais:
        by_default = ours.post("/v1/chat/completions", json=CHAT).json()["choices"]
        spelled = openais.post("/v1/chat/completions", json=CHAT | greedy).json()["choices"]
        without = openais.post("/v1/chat/completions", json=CHAT | greedy | {"repetition_penalty": 1}).json()["choices"]
    assert by_default == spelled != without


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_answer_is_beyond_the_bound(bounded: Running, path: str) -> None:
    body = CHAT if "chat" in path else {"prompt": "once", "ignore_eos": True}
    with bounded.client() as client:
        unsaid = client.post(path, json=body).json()
        assert unsaid["usage"]["completion_tokens"] == 5
        assert unsaid["choices"][0]["finish_reason"] == "length"
        assert client.post(path, json=body | {"max_tokens": 5}).json()["usage"]["completion_tokens"] == 5
        refused = client.post(path, json=body | {"max_tokens": 6})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "max_tokens")
        assert error["message"] == "max_tokens asks for 6, and this server gives at most 5 tokens to an answer."
        assert client.post(path, json=body | {"min_tokens": 6}).json()["error"]["param"] == "min_tokens"


def test_the_bound_is_spelled_as_the_client_spelled_it(bounded: Running) -> None:
    with bounded.client() as client:
        newer = client.post("/v1/chat/completions", json=CHAT | {"max_completion_tokens": 6})
        assert newer.json()["error"]["param"] == "max_completion_tokens"
        responses = client.post("/v1/responses", json={"model": "alias", "input": "a", "max_output_tokens": 20})
        assert (responses.status_code, responses.json()["error"]["param"]) == (400, "max_output_tokens")


def test_an_end_of_the_users_own_file_ends_an_answer(folder: Path, server: Running, tmp_path: Path) -> None:
    body = {"prompt": "once", "temperature": 0, "max_tokens": 8}
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", dtype="float32") as llm:  # as the server below
        (first, second) = llm.generate("once", SamplingParams(temperature=0, max_tokens=2))[0].outputs[0].token_ids
    assert first != second
    (tmp_path / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1, "eos_token_id": second}))
    with served(folder, generation_config=str(tmp_path)) as ended, ended.client() as client:
        answer = client.post("/v1/completions", json=body).json()
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (2, "stop")


def test_python_has_the_same(folder: Path) -> None:
    with LLM(str(folder), kv_cache_memory_bytes="1MiB") as llm:
        defaults = llm.get_default_sampling_params()
        assert defaults == SamplingParams(temperature=0.0, top_k=7, repetition_penalty=1.3, max_tokens=20)
        assert llm.generate("once")[0].outputs == llm.generate("once", defaults)[0].outputs
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", generation_config="vllm") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
