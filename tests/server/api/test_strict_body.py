"""A body with millions of mistakes costs no more than one with a single mistake: pydantic would collect them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import Field, ValidationError

import pagemill_server.api.app  # noqa: F401  all endpoints' bodies are there
from pagemill_server.api.protocol import ChatBody
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.errors import BadRequest

MANY = 5_000
USER = {"role": "user", "content": "x"}


class _Inner(Body):
    name: str


class _Outer(Body):
    numbers: list[int] | None = None
    inner: list[_Inner] | None = None
    lists: list[list[int]] | None = None
    by_name: dict[str, float] | None = None
    anything: dict[str, Any] | None = None
    short: list[int] = Field(default=[], max_length=3)


FLOODS: list[tuple[type[Body], dict[str, Any], str]] = [
    (_Outer, {"numbers": [""] * MANY}, "numbers[0]"),
    (_Outer, {"inner": [{}] * MANY}, "inner[0].name"),
    (_Outer, {"lists": [[""] * MANY] * 3}, "lists[0][0]"),
    (_Outer, {"by_name": {str(i): "" for i in range(MANY)}}, "by_name"),
    (_Outer, {str(i): 1 for i in range(MANY)}, ""),
    (_Outer, {"inner": [{str(i): 1 for i in range(MANY)}]}, "inner[0]"),
    (ChatBody, {"model": "tiny/llama", "messages": [{"k": 1}] * MANY}, "messages[0].role"),
    (ChatBody, {"model": "tiny/llama", "messages": [USER], "stop_token_ids": [""] * MANY}, "stop_token_ids[0]"),
    (
        ChatBody,
        {"model": "tiny/llama", "messages": [USER], "logit_bias": {str(i): "" for i in range(MANY)}},
        "logit_bias",
    ),
    (ChatBody, {"model": "tiny/llama", "messages": [USER], "tools": [{}] * MANY}, "tools[0].type"),
    (
        ChatBody,
        {"model": "tiny/llama", "messages": [USER | {"tool_calls": [{}] * MANY}]},
        "messages[0].tool_calls[0].id",
    ),
]


@pytest.mark.parametrize(("kind", "body", "param"), FLOODS)
def test_mistakes_are_not_collected(kind: type[Body], body: dict[str, Any], param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() < 10
    with pytest.raises(BadRequest) as refused:
        validated(kind, body)
    assert (refused.value.param or "") == param


def test_no_list_of_any_body_collects_mistakes() -> None:
    kinds = list(_below(Body))
    assert len(kinds) > 20
    lists = [schema for kind in kinds for schema in _lists(kind.__pydantic_core_schema__)]
    assert lists
    assert all(schema.get("fail_fast") for schema in lists)


def test_what_is_right_is_taken() -> None:
    many = {str(i): i for i in range(MANY)}
    body = validated(_Outer, {"numbers": list(range(MANY)), "anything": many, "by_name": {"a": 1.5}})
    assert body.anything == many
    assert body.numbers == list(range(MANY))
    assert body.by_name == {"a": 1.5}


def test_a_list_that_is_too_long_says_so() -> None:
    with pytest.raises(BadRequest, match="at most 3 items"):
        validated(_Outer, {"short": [1] * MANY})


def _below(kind: type[Body]) -> Iterator[type[Body]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _lists(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        yield from itertools.chain.from_iterable(_lists(part) for part in schema.values())
    elif isinstance(schema, list | tuple):
        yield from itertools.chain.from_iterable(_lists(part) for part in schema)
