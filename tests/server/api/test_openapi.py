"""The document: every route, every field as the validators have it, and real answers that are what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pagemill.endpoints import OPEN_PATHS
from pagemill_server.api.app import make_app
from pagemill_server.api.embedding_body import parse_embedding
from pagemill_server.api.openapi.bodies import body_schemas
from pagemill_server.api.openapi.document import document
from pagemill_server.api.openapi.paths import OPERATIONS
from pagemill_server.api.protocol import ChatBody, parse_chat, parse_completion
from pagemill_server.api.responses.body import parse_response
from pagemill_server.api.responses.turns import messages_of
from pagemill_server.errors import BadRequest
from tests.server.api.running import Running, serving
from tests.server.tiny_bert import write_tiny_encoder

Json = dict[str, Any]
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
FREE = {"cache_control", "annotations", "logprobs", "prompt_cache_breakpoint"}  # comes along, and nobody reads it


@cache
def made() -> Json:
    """As a client reads it."""
    read: Json = json.loads(json.dumps(document()))
    return read


def trouble(name: str, value: Any) -> str | None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": made()["components"]}
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    return None if error is None else f"{error.json_path}: {error.message}"


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_every_route_is_there(server: Running) -> None:
    routes = {
        (method.lower(), re.sub(r":\w+}", "}", route.path))
        for route in make_app(server.service).routes
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routes == {(operation.method, operation.path) for operation in OPERATIONS}


def test_what_needs_no_key_says_so() -> None:
    for path, methods in made()["paths"].items():
        for operation in methods.values():
            assert (operation.get("security") == []) == (path in OPEN_PATHS), path
    assert made()["security"] == [{"key": []}]


def test_every_reference_leads_somewhere() -> None:
    for reference in references(made()):
        place: Any = made()
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert place


def test_no_field_is_left_open() -> None:
    for name, schema in body_schemas().items():
        for field, value in schema.get("properties", {}).items():
            assert value or field in FREE, f"{name}.{field} would take anything"


def test_every_schema_is_sound() -> None:
    for schema in made()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_a_field_of_the_type_is_in_the_document() -> None:
    assert set(ChatBody.model_fields) <= set(body_schemas()["ChatBody"]["properties"])


def _response(body: Mapping[str, Any]) -> None:
    messages_of(parse_response(body).input, None)


def _embedding(body: Mapping[str, Any]) -> None:
    parse_embedding(body).inputs()


PARSERS: Mapping[str, Any] = {
    "ChatBody": parse_chat,
    "CompletionBody": parse_completion,
    "ResponseBody": _response,
    "EmbeddingBody": _embedding,
}
ITEM = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TAKEN: list[tuple[str, Json]] = [
    ("ChatBody", {"model": "tiny/llama", "messages": [USER]}),
    (
        "ChatBody",
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "stop": "a",
            "n": 2,
        },
    ),
    (
        "ChatBody",
        {
            "model": "tiny/llama",
            "messages": [USER],
            "stop": ["a"],
            "logit_bias": {"5": 1},
            "metadata": {"a": "b"},
            "audio": None,
        },
    ),
    (
        "ChatBody",
        {"model": "tiny/llama", "messages": [USER], "modalities": ["text"], "best_of": 1, "length_penalty": 1},
    ),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "tools": [TOOL], "tool_choice": "required"}),
    (
        "ChatBody",
        {
            "model": "tiny/llama",
            "messages": [USER],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    (
        "ChatBody",
        {
            "model": "tiny/llama",
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "annotations": [],
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
                },
                {"role": "tool", "content": "1", "tool_call_id": "c"},
            ],
        },
    ),
    (
        "ChatBody",
        {"model": "tiny/llama", "messages": [USER], "response_format": {"type": "json_object"}, "guided_json": None},
    ),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "structured_outputs": {"json": {"type": "object"}}}),
    ("CompletionBody", {"prompt": "a", "suffix": ""}),
    ("CompletionBody", {"prompt": [1, 2]}),
    ("CompletionBody", {"prompt": ["a", [1]], "logprobs": 5, "echo": True}),
    ("ResponseBody", {"model": "m", "input": "hi", "truncation": "disabled", "background": False}),
    (
        "ResponseBody",
        {"model": "m", "input": [ITEM, CALL, {"type": "function_call_output", "call_id": "c", "output": "1"}]},
    ),
    ("ResponseBody", {"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}}),
    ("ResponseBody", {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f", "async": False}]}),
    ("EmbeddingBody", {"input": ["a", [1]], "dimensions": 8, "encoding_format": "base64", "truncation_side": "right"}),
]
REFUSED: list[tuple[str, Json]] = [
    ("ChatBody", {}),
    ("ChatBody", {"model": "tiny/llama", "messages": []}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "unheard_of": 1}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER | {"unheard_of": 1}]}),
    ("ChatBody", {"model": "tiny/llama", "messages": [{"role": "narrator", "content": "x"}]}),
    (
        "ChatBody",
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        },
    ),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "stop": 3}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "audio": {"voice": "x"}}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "modalities": ["audio"]}),
    (
        "ChatBody",
        {"model": "tiny/llama", "messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
    ),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "service_tier": "flex"}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "response_format": {"type": "xml"}}),
    ("ChatBody", {"model": "tiny/llama", "messages": [USER], "stream": "yes"}),
    ("CompletionBody", {}),
    ("CompletionBody", {"prompt": ""}),
    ("CompletionBody", {"prompt": []}),
    ("CompletionBody", {"prompt": [["a"]]}),
    ("CompletionBody", {"prompt": "a", "suffix": "b"}),
    ("CompletionBody", {"prompt": "a", "n": 1.5}),
    ("ResponseBody", {"input": "hi"}),
    ("ResponseBody", {"model": "m", "input": []}),
    ("ResponseBody", {"model": "m", "input": [{"type": "item_reference", "id": "x"}]}),
    ("ResponseBody", {"model": "m", "input": "hi", "previous_response_id": "x"}),
    ("ResponseBody", {"model": "m", "input": "hi", "n": 2}),
    ("EmbeddingBody", {"input": ""}),
    ("EmbeddingBody", {"input": "a", "dimensions": 0}),
]


@pytest.mark.parametrize(("name", "body"), TAKEN)
def test_what_is_taken(name: str, body: Json) -> None:
    assert trouble(name, body) is None
    PARSERS[name](body)


@pytest.mark.parametrize(("name", "body"), REFUSED)
def test_what_is_refused(name: str, body: Json) -> None:
    assert trouble(name, body) is not None
    with pytest.raises(BadRequest):
        PARSERS[name](body)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("temperature", 2.1),
        ("top_p", 0),
        ("min_p", -0.1),
        ("n", 0),
        ("n", 129),
        ("repetition_penalty", 0),
        ("seed", 2**63),
    ],
)
def test_bounds_of_sampling_are_said(server: Running, field: str, wrong: float) -> None:
    assert trouble("CompletionBody", {"prompt": "a", field: wrong}) is not None
    with server.client() as client:
        assert client.post("/v1/completions", json={"prompt": "a", field: wrong}).status_code == 400


CHAT = {"model": "tiny/llama", "messages": [USER], "max_tokens": 3}
ASKED: list[tuple[str, Json, str]] = [
    ("/v1/chat/completions", CHAT, "ChatCompletion"),
    (
        "/v1/chat/completions",
        CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2, "prompt_logprobs": 1},
        "ChatCompletion",
    ),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 3}, "Completion"),
    ("/v1/completions", {"prompt": ["hi", [1, 2]], "max_tokens": 2, "logprobs": 2, "echo": True}, "Completion"),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 2, "prompt_logprobs": 1}, "Completion"),
    ("/v1/responses", {"model": "alias", "input": "hi", "max_output_tokens": 3}, "Response"),
    (
        "/v1/responses",
        {"model": "alias", "input": "hi", "max_output_tokens": 3, "include": ["message.output_text.logprobs"]},
        "Response",
    ),
    ("/tokenize", {"prompt": "hi", "return_token_strs": True}, "Tokens"),
    ("/tokenize", {"model": "tiny/llama", "messages": [USER], "return_token_strs": True}, "Tokens"),
    ("/detokenize", {"tokens": [104]}, "Text"),
]
BODIES = {
    "/v1/chat/completions": "ChatBody",
    "/v1/completions": "CompletionBody",
    "/v1/responses": "ResponseBody",
    "/detokenize": "DetokenizeBody",
}


@pytest.mark.parametrize(("path", "body", "name"), ASKED)
def test_an_answer_is_what_it_says(server: Running, path: str, body: Json, name: str) -> None:
    with server.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert trouble(name, answer.json()) is None
    asked = BODIES.get(path, "ConversationBody" if "messages" in body else "PromptBody")
    assert trouble(asked, body) is None


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (
            "/v1/chat/completions",
            CHAT | {"logprobs": True, "stream_options": {"include_usage": True}},
            "ChatCompletionChunk",
        ),
        ("/v1/completions", {"prompt": "hi", "logprobs": 1, "stream_options": {"include_usage": True}}, "Completion"),
        ("/v1/responses", {"model": "alias", "input": "hi", "max_output_tokens": 3}, "ResponseEvent"),
    ],
)
def test_an_event_is_what_it_says(server: Running, path: str, body: Json, name: str) -> None:
    with server.client() as client:
        answer = client.post(path, json=body | {"stream": True})
    events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    assert len(events) >= 3
    for event in events:
        assert trouble(name, json.loads(event)) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models", "Models"),
        ("/v1/models/tiny/llama", "Model"),
        ("/health", "Health"),
        ("/ready", "Readiness"),
        ("/version", "Version"),
        ("/tokenizer_info", "TokenizerInfo"),
        ("/openapi.json", "Document"),
        ("/v1/models/other", "Error"),
        ("/nowhere", "Error"),
        ("/v1/responses/resp_1", "Error"),
        ("/v1/completions", "Error"),
    ],
)
def test_what_is_only_asked_for(server: Running, path: str, name: str) -> None:
    with server.client() as client:
        answer = client.get(path)
    assert trouble(name, answer.json()) is None
    assert (name == "Error") == (answer.status_code >= 400)


def test_vectors_too(tmp_path: Path) -> None:
    with serving(write_tiny_encoder(tmp_path / "bert")) as embedder, embedder.client() as client:
        for form in ("float", "base64"):
            answer = client.post("/v1/embeddings", json={"input": "hi", "encoding_format": form})
            assert trouble("Embeddings", answer.json()) is None, answer.text


def test_it_needs_the_key(tiny: Path) -> None:
    with serving(tiny, api_keys=["secret"]) as server, server.client() as client:
        refused = client.get("/openapi.json")
        assert refused.status_code == 401
        assert trouble("Error", refused.json()) is None
        shown = client.get("/openapi.json", headers={"authorization": "Bearer secret"})
    assert shown.headers["content-type"] == "application/json"
    assert shown.json() == made()
