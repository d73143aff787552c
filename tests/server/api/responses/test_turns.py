"""`input` of /v1/responses: which turns its items are, and what is refused by the name of the item."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.api.responses.turns import messages_of
from pagemill_server.errors import BadRequest

USER: Any = {"role": "user", "content": "hi"}
THOUGHT: Any = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "think"}],
}
WORDS: Any = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "words", "annotations": [], "logprobs": []}],
}
CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get", "arguments": '{"a": 1}'}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "42"}


def call_turn(**more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"a": 1}}}
    return {"role": "assistant", "content": None, "tool_calls": [call]} | more


def thinking(text: str) -> dict[str, Any]:
    return {"reasoning": text, "reasoning_content": text}


TURNS: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("a string", "hi", [USER]),
    ("an easy message", [USER], [USER]),
    ("parts", [{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}], [USER | {"content": "a\nb"}]),
    ("developer is system", [{"type": "message", "role": "developer", "content": "x"}], [{"role": "system", "content": "x"}]),
    ("words", [WORDS], [{"role": "assistant", "content": "words"}]),
    (
        "a refusal",
        [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [{"role": "assistant", "content": "no"}],
    ),
    ("a call", [CALL], [call_turn()]),
    ("all of an output is one turn", [THOUGHT, WORDS, CALL], [call_turn(content="words", **thinking("think"))]),
    ("words after a call are with it", [CALL, WORDS], [call_turn(content="words")]),
    ("words after words are the next turn", [WORDS, WORDS], [{"role": "assistant", "content": "words"}] * 2),
    ("thoughts begin a turn", [WORDS, THOUGHT], [
        {"role": "assistant", "content": "words"},
        {"role": "assistant", "content": "", **thinking("think")},
    ]),
    ("thoughts after thoughts", [THOUGHT, THOUGHT], [{"role": "assistant", "content": "", **thinking("think\nthink")}]),
    (
        "a summary, where there is no more",
        [THOUGHT | {"content": None, "summary": [{"type": "summary_text", "text": "short"}]}],
        [{"role": "assistant", "content": "", **thinking("short")}],
    ),
    ("a result", [CALL, RESULT], [call_turn(), {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "get"}]),
    (
        "a result in parts",
        [CALL, RESULT | {"output": [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]}],
        [call_turn(), {"role": "tool", "content": "4\n2", "tool_call_id": "c1", "name": "get"}],
    ),
    ("after a result another turn", [CALL, RESULT, WORDS], [
        call_turn(),
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "get"},
        {"role": "assistant", "content": "words"},
    ]),
    ("phases", [WORDS | {"phase": "commentary"}], [{"role": "assistant", "content": "words"}]),
    ("nulls of a client's own model", [CALL | {"caller": None, "namespace": None, "async": None}], [call_turn()]),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "turns"), [pytest.param(s, t, id=name) for name, s, t in TURNS])
def test_turns(sent: Any, turns: list[dict[str, Any]]) -> None:
    assert messages_of(sent, None) == turns


def test_instructions_stand_at_the_front() -> None:
    assert messages_of([USER], "be brief") == [{"role": "system", "content": "be brief"}, USER]
    assert messages_of("hi", "be brief") == [{"role": "system", "content": "be brief"}, USER]


REFUSED: list[tuple[str, Any, str]] = [
    ("nothing", None, "input"),
    ("empty text", "", "input"),
    ("no items", [], "input"),
    ("a number", 3, "input"),
    ("an item that is none", ["hi"], "input[0]"),
    ("an image", [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}], "input[0].content"),
    ("a file", [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content"),
    ("half a part", [{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content"),
    ("a part's unknown key", [{"role": "user", "content": [{"type": "input_text", "text": "", "x": 1}]}], "input[0].content"),
    ("no content", [{"role": "user"}], "input[0].content"),
    ("an unknown role", [{"role": "tool", "content": "x"}], "input[0].role"),
    ("an unknown key", [USER | {"x": 1}], "input[0].x"),
    ("a reference", [USER, {"type": "item_reference", "id": "msg_1"}], "input[1]"),
    ("a reference without its type", [{"id": "msg_1"}], "input[0]"),
    ("another tool's item", [{"type": "web_search_call", "id": "ws_1"}], "input[0].type"),
    ("a type that is no string", [{"type": {"a": 1}}], "input[0].type"),
    ("arguments that are no JSON", [CALL | {"arguments": "{"}], "input[0].arguments"),
    ("arguments that are no object", [CALL | {"arguments": "[]"}], "input[0].arguments"),
    ("a call without a name", [CALL | {"name": ""}], "input[0].name"),
    ("a result of no call", [RESULT], "input[0].call_id"),
    ("a result before its call", [RESULT, CALL], "input[0].call_id"),
    ("encrypted reasoning", [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}], "input[0].encrypted_content"),
    ("a program's call", [CALL | {"caller": {"type": "program", "caller_id": "p"}}], "input[0].caller"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "param"), [pytest.param(s, p, id=name) for name, s, p in REFUSED])
def test_refused(sent: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        messages_of(sent, None)
    assert refused.value.param == param
    assert param in refused.value.message
