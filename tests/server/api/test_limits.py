"""The limits of what a request may bring: each is there, refuses with OpenAI's error object, and stands in the guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemill_server.api import embedding_body, http_protocol, prepare, protocol, service, tokens, tool_fields
from pagemill_server.engine import params
from pagemill_server.text.grammar import bounds
from tests.server.api.asking import error_of
from tests.server.api.running import NAME, Running, serving, settings_for
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import write_tiny_encoder

GUIDE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, TOKENIZE = "/v1/responses", "/tokenize"
TOO_LONG = "a" * (tokens.MOST_BYTES + 1)
HI = {"role": "user", "content": "hi"}


def tools(number: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"t{i}", "parameters": {"type": "object"}}} for i in range(number)
    ]


def structured(kind: str, value: Any) -> dict[str, Any]:
    return {"structured_outputs": {kind: value}}


# What stands in the guide, the limit, and a body that is one beyond it with the field that is named.
ONE_MORE: list[tuple[str, int, str, dict[str, Any], str]] = [
    (
        "`messages`",
        protocol.MAX_MESSAGES,
        CHAT,
        {"model": "tiny/llama", "messages": [HI] * (protocol.MAX_MESSAGES + 1)},
        "messages",
    ),
    ("items of", protocol.MAX_MESSAGES, RESPONSES, {"input": [HI] * (protocol.MAX_MESSAGES + 1)}, "input"),
    (
        "a text",
        tokens.MOST_BYTES,
        CHAT,
        {"model": "tiny/llama", "messages": [{"role": "user", "content": TOO_LONG}]},
        "messages",
    ),
    ("a text", tokens.MOST_BYTES, COMPLETIONS, {"prompt": ["a", TOO_LONG]}, "prompt"),
    ("a text", tokens.MOST_BYTES, RESPONSES, {"input": TOO_LONG}, "input"),
    ("a text", tokens.MOST_BYTES, EMBEDDINGS, {"input": ["a", TOO_LONG]}, "input"),
    ("a text", tokens.MOST_BYTES, TOKENIZE, {"prompt": "ä" * (tokens.MOST_BYTES // 2 + 1)}, "prompt"),
    (
        "a text",
        tokens.MOST_BYTES,
        TOKENIZE,
        {"model": "tiny/llama", "messages": [{"role": "user", "content": TOO_LONG}]},
        "messages",
    ),
    ("`tokens` of", tokens.MOST_IDS, "/detokenize", {"tokens": [1] * (tokens.MOST_IDS + 1)}, "tokens"),
    (
        "`tools`",
        tool_fields.MAX_TOOLS,
        CHAT,
        {"model": "tiny/llama", "messages": [HI], "tools": tools(tool_fields.MAX_TOOLS + 1)},
        "tools",
    ),
    ("prompts of", protocol.MAX_PROMPTS, COMPLETIONS, {"prompt": ["a"] * (protocol.MAX_PROMPTS + 1)}, "prompt"),
    ("`n`", params.MAX_N, COMPLETIONS, {"prompt": "a", "n": params.MAX_N + 1}, "n"),
    ("`n`", params.MAX_N, CHAT, {"model": "tiny/llama", "messages": [HI], "n": params.MAX_N + 1}, "n"),
    ("choices,", protocol.MAX_CHOICES, COMPLETIONS, {"prompt": ["a"] * 171, "n": 3}, "n"),
    ("`stop`", params.MAX_STOPS, COMPLETIONS, {"prompt": "a", "stop": ["a"] * (params.MAX_STOPS + 1)}, "stop"),
    (
        "characters of a stop string",
        params.MAX_STOP_CHARACTERS,
        COMPLETIONS,
        {"prompt": "a", "stop": "a" * (params.MAX_STOP_CHARACTERS + 1)},
        "stop",
    ),
    (
        "`stop_token_ids`",
        params.MAX_STOP_TOKENS,
        COMPLETIONS,
        {"prompt": "a", "stop_token_ids": [1] * (params.MAX_STOP_TOKENS + 1)},
        "stop_token_ids",
    ),
    (
        "`logit_bias`",
        params.MAX_BIASES,
        COMPLETIONS,
        {"prompt": "a", "logit_bias": {str(i): 1 for i in range(params.MAX_BIASES + 1)}},
        "logit_bias",
    ),
    ("`logprobs`,", params.MAX_LOGPROBS, COMPLETIONS, {"prompt": "a", "logprobs": params.MAX_LOGPROBS + 1}, "logprobs"),
    (
        "`logprobs`,",
        params.MAX_LOGPROBS,
        CHAT,
        {"model": "tiny/llama", "messages": [HI], "logprobs": True, "top_logprobs": params.MAX_LOGPROBS + 1},
        "top_logprobs",
    ),
    (
        "log-probabilities of prompts",
        prepare.MAX_PROMPT_LOGPROBS,
        COMPLETIONS,
        {"prompt": ["a" * 4000] * 4, "n": 12, "temperature": 1, "prompt_logprobs": 20, "max_tokens": 1},
        "prompt_logprobs",
    ),
    (
        "`cache_salt`",
        protocol.MAX_SALT_CHARACTERS,
        COMPLETIONS,
        {"prompt": "a", "cache_salt": "a" * (protocol.MAX_SALT_CHARACTERS + 1)},
        "cache_salt",
    ),
    (
        "a regular expression",
        bounds.MAX_REGEX_CHARACTERS,
        COMPLETIONS,
        {"prompt": "a"} | structured("regex", "a" * (bounds.MAX_REGEX_CHARACTERS + 1)),
        "structured_outputs",
    ),
    (
        "a grammar",
        bounds.MAX_CFG_CHARACTERS,
        COMPLETIONS,
        {"prompt": "a"} | structured("grammar", 'start: "' + "a" * bounds.MAX_CFG_CHARACTERS + '"'),
        "structured_outputs",
    ),
    (
        "a JSON schema",
        bounds.MAX_CHARACTERS,
        COMPLETIONS,
        {"prompt": "a"} | structured("json", {"const": "a" * bounds.MAX_CHARACTERS}),
        "structured_outputs",
    ),
    (
        "`choice`",
        bounds.MAX_CHOICES,
        COMPLETIONS,
        {"prompt": "a"} | structured("choice", [str(i) for i in range(bounds.MAX_CHOICES + 1)]),
        "structured_outputs",
    ),
    (
        "texts of",
        embedding_body.MAX_INPUTS,
        EMBEDDINGS,
        {"input": ["a"] * (embedding_body.MAX_INPUTS + 1)},
        "input",
    ),
]
OF_HTTP = [
    ("request line and headers", http_protocol.MAX_HEAD_BYTES),
    ("a head that comes slowly", int(http_protocol.HEAD_SECONDS)),
    ("requests read ahead", http_protocol.MAX_PIPELINED),
    ("body", service.MAX_BODY_BYTES),
    ("a body that stalls", int(service.BODY_STALL_SECONDS)),
    ("an answer of which nothing is read", int(http_protocol.READ_SECONDS)),
]


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(write_tiny_encoder(tmp_path_factory.mktemp("encoder"))) as running:
        yield running


@pytest.mark.parametrize(
    ("limit", "path", "sent", "param"), [row[1:] for row in ONE_MORE], ids=[f"{row[2]} {row[0]}" for row in ONE_MORE]
)
def test_one_more_is_refused(
    request: pytest.FixtureRequest, limit: int, path: str, sent: dict[str, Any], param: str
) -> None:
    server: Running = request.getfixturevalue("embedding" if path == EMBEDDINGS else "idle_server")
    with server.client() as client:
        response = client.post(path, json={"model": NAME} | sent)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"].startswith(param)
    assert str(limit) in error["message"], "it says how much may be"
    assert len(error["message"]) < 500


@pytest.mark.parametrize(("words", "limit"), sorted({row[:2] for row in ONE_MORE} | set(OF_HTTP)), ids=str)
def test_the_guide_has_it(words: str, limit: int) -> None:
    rows = [row for row in GUIDE.splitlines() if row.startswith(f"| {words}")]
    assert any(f"| {limit:,}" in row for row in rows), rows


def test_a_long_text_is_no_trouble_where_the_context_could_hold_it(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, max_position_embeddings=100_000)
    room = settings_for(folder, memory_bytes=64 << 20)
    with serving(folder, settings=room) as server, server.client() as client:
        answer = client.post(TOKENIZE, json={"prompt": TOO_LONG})
        assert answer.json()["count"] == len(TOO_LONG)


def test_a_text_that_may_be_cut_may_be_longer(embedding: Running) -> None:
    with embedding.client() as client:
        for special in (True, False):
            cut = {"truncate_prompt_tokens": -1, "add_special_tokens": special}
            vectors = [
                client.post(EMBEDDINGS, json={"input": text} | cut).json()["data"][0]["embedding"]
                for text in ("a " * 4000, "a " * tokens.MOST_BYTES)
            ]
            assert vectors[0] == vectors[1]


def test_a_larger_body_is_refused_with_413(idle_server: Running) -> None:
    with idle_server.client() as client:
        response = client.post(COMPLETIONS, content=b" " * (service.MAX_BODY_BYTES + 1))
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"


def test_a_body_of_the_largest_size_is_read(idle_server: Running) -> None:
    with idle_server.client() as client:
        response = client.post(COMPLETIONS, content=b" " * service.MAX_BODY_BYTES)
    assert error_of(response)["code"] == "invalid_json"
