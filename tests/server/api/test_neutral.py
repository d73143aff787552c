"""What others have and this server does not: taken where it asks for nothing, refused by name where it asks, and in the guide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from pagemill_server.api import neutral
from pagemill_server.api.embedding_body import EmbeddingBody, parse_embedding
from pagemill_server.api.protocol import ChatBody, CompletionBody, parse_chat, parse_completion
from pagemill_server.api.responses import body as response_body
from pagemill_server.api.responses.body import ResponseBody, parse_response
from pagemill_server.api.strict_body import Body
from pagemill_server.api.structured import StructuredOutputs
from pagemill_server.errors import BadRequest

DOCS = Path(__file__).parents[3] / "docs"
Parser = Callable[[Mapping[str, Any]], Body]

# By endpoint: the parser, the least it takes, what is neutral, the body, its guides, the parameters of openai's own client.
ENDPOINTS: dict[str, tuple[Parser, dict[str, Any], neutral.Table, type[Body], tuple[str, ...], set[str]]] = {
    "chat": (
        parse_chat,
        {"model": "tiny/llama", "messages": [{"role": "user", "content": "hi"}]},
        neutral.CHAT,
        ChatBody,
        ("chat", "sampling"),
        {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"},
    ),
    "completions": (
        parse_completion,
        {"prompt": "a"},
        neutral.COMPLETIONS,
        CompletionBody,
        ("chat", "sampling"),
        {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"},
    ),
    "responses": (
        parse_response,
        {"model": "m", "input": "a"},
        response_body.NEUTRAL,
        ResponseBody,
        ("responses",),
        {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream"},
    ),
    "embeddings": (
        parse_embedding,
        {"input": "a"},
        neutral.EMBEDDINGS,
        EmbeddingBody,
        ("embeddings",),
        set(embedding_create_params.EmbeddingCreateParams.__annotations__),
    ),
}
VALUES = [
    pytest.param(endpoint, name, value, id=f"{endpoint} {name} {value}")
    for endpoint, row in ENDPOINTS.items()
    for name, values in row[2].items()
    for value in (*values, None)
]
NAMES = [
    pytest.param(endpoint, name, id=f"{endpoint} {name}") for endpoint, row in ENDPOINTS.items() for name in row[2]
]
every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS)


@pytest.mark.parametrize(("endpoint", "name", "value"), VALUES)
def test_what_asks_for_nothing_is_taken(endpoint: str, name: str, value: object) -> None:
    parse, least, *_ = ENDPOINTS[endpoint]
    parse(least | {name: value})


@pytest.mark.parametrize(
    "more",
    [
        {"top_logprobs": 0},
        {"logprobs": False, "top_logprobs": 0},
        {"model": "tiny/llama", "messages": [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}]},
        {"model": "tiny/llama", "messages": [{"role": "assistant", "content": "a", "provider_specific_fields": {}}]},
        {"model": "tiny/llama", "messages": [{"role": "assistant", "content": "a", "provider_specific_fields": None}]},
        {"tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}]},
    ],
    ids=str,
)
def test_what_clients_send_along_is_taken(more: dict[str, Any]) -> None:
    parse_chat(ENDPOINTS["chat"][1] | more)


@pytest.mark.parametrize(("endpoint", "name"), NAMES)
def test_what_asks_for_something_is_refused_by_name(endpoint: str, name: str) -> None:
    parse, least, *_ = ENDPOINTS[endpoint]
    with pytest.raises(BadRequest) as refused:
        parse(least | {name: {"something": "else"}})
    assert refused.value.param == name
    assert name in refused.value.message


@every_endpoint
def test_openais_own_parameters_are_all_known(endpoint: str) -> None:
    """A client may send null for any of them."""
    *_, table, body, _, parameters = ENDPOINTS[endpoint]
    assert len(parameters) > 4
    assert parameters - {field.alias or name for name, field in body.model_fields.items()} - set(table) == set()


@every_endpoint
def test_the_guide_names_them(endpoint: str) -> None:
    *_, table, body, guides, _ = ENDPOINTS[endpoint]
    guide = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in guides)
    assert [name for name in (*body.model_fields, *table) if f"`{name}" not in guide] == []


def test_vllms_structured_outputs_with_everything_it_has() -> None:
    """As its own dataclass is spelled, all but one null."""
    sent = dict.fromkeys((*(f.alias or name for name, f in StructuredOutputs.model_fields.items()),)) | {"regex": "a"}
    assert {"whitespace_pattern", "structural_tag"} <= sent.keys()
    parse_completion({"prompt": "a", "structured_outputs": sent})
    guides = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("chat", "structured-output"))
    assert [name for name in sent if f"`{name}`" not in guides and f'"{name}": ' not in guides] == []
    with pytest.raises(BadRequest, match=r"structured_outputs\.structural_tag"):
        parse_completion({"prompt": "a", "structured_outputs": sent | {"structural_tag": "x"}})
