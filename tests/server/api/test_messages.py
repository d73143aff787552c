"""A chat's messages: what each role may have, and what templates get of it."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.api.messages import for_template
from pagemill_server.api.protocol import parse_chat
from pagemill_server.errors import BadRequest

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": [1, "é"]}'}}


def rendered(*messages: Any) -> list[dict[str, Any]]:
    return for_template(parse_chat({"model": "tiny/llama", "messages": list(messages)}).messages)


def refused(*messages: Any) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        rendered(*messages)
    return error.value


@pytest.mark.parametrize(
    ("message", "made"),
    [
        (USER, {"role": "user", "content": "hi"}),
        (USER | {"name": "ann"}, {"role": "user", "content": "hi", "name": "ann"}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
            {"role": "assistant", "content": "a\nb"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (USER | {"cache_control": {"type": "ephemeral"}}, USER),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "look"},
            {"role": "tool", "content": "7", "name": "look", "tool_call_id": "c1"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "hm"},
            {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "hm"},
            {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_content": "hm"},
        ),
    ],
)
def test_what_templates_get(message: Any, made: Any) -> None:
    assert rendered(message) == [made]


def test_arguments_are_an_object() -> None:
    (message,) = rendered({"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0}]})
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": [1, "é"]}}}
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [called],
    }  # None tells some templates: a call


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_a_call_without_arguments(nothing: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": nothing}}
    (message,) = rendered({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_openais_older_functions_become_tools() -> None:
    asked, answered = rendered(
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "7"},
    )
    (call,) = asked["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": {}}
    assert answered == {"role": "tool", "content": "7", "name": "look", "tool_call_id": call["id"]}
    assert len(call["id"]) == 9
    assert call["id"].isalnum()  # Mistral's template takes no other


@pytest.mark.parametrize(
    "keys",
    [
        {"tool_calls": None, "function_call": None, "refusal": None, "audio": None, "annotations": []},
        {"tool_calls": []},
        {"reasoning": None, "reasoning_content": ""},
    ],
)
def test_an_answer_can_be_sent_back_as_a_client_keeps_it(keys: dict[str, Any]) -> None:
    assert rendered({"role": "assistant", "content": "a"} | keys) == [{"role": "assistant", "content": "a"}]


def _call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL | changes]}


def _arguments(text: Any) -> dict[str, Any]:
    return _call(function={"name": "look", "arguments": text})


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"role": "tool", "content": None, "tool_call_id": "c1"}, "content", "missing"),
        (USER | {"tool_calls": [CALL]}, "tool_calls", "assistant"),
        (USER | {"tool_call_id": "c1"}, "tool_call_id", "tool"),
        (USER | {"reasoning": "hm"}, "reasoning", "assistant"),
        (_arguments("{"), "tool_calls[0].function.arguments", "not valid JSON"),
        (_arguments("[1]"), "tool_calls[0].function.arguments", "object"),
        (_arguments('{"a": NaN}'), "tool_calls[0].function.arguments", "not valid JSON"),
        (_arguments('{"a": "\\ud800"}'), "tool_calls[0].function.arguments", "not valid JSON"),
        (_arguments('{"a":' * 100_000), "tool_calls[0].function.arguments", "not valid JSON"),
        (_arguments('{"a":' * 101 + "1" + "}" * 101), "tool_calls[0].function.arguments", "deeper than 100"),
        (_arguments({"a": 1}), "tool_calls[0].function.arguments", "string"),
        (_call(type="custom"), "tool_calls[0].type", "function"),
        (_call(function={"arguments": "{}"}), "tool_calls[0].function.name", "Missing"),
        (_call(mood="x"), "tool_calls[0].mood", "Unknown"),
        (_call() | {"function_call": {"name": "a", "arguments": "{}"}}, "function_call", "one of them"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content", "image_url"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}, "content", "part 1"),
        ({"role": "user", "content": [{"type": "text"}]}, "content", "a string"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "mood": 1}]}, "content", "mood"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "content", "part 0"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "content", "list"),
    ],
)
def test_what_is_wrong_is_named(message: Any, param: str, words: str) -> None:
    error = refused(USER, message)
    assert error.param == f"messages[1].{param}"
    assert words in error.message
    assert len(error.message) < 300
