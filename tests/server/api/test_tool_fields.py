"""Tools and their choice, as clients spell them."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.api.conversation import ToolChoice
from pagemill_server.api.protocol import parse_chat
from pagemill_server.api.tool_fields import chosen, tools_of
from pagemill_server.errors import BadRequest
from pagemill_server.text.tools import Tool


def read(body: dict[str, Any]) -> tuple[tuple[Tool, ...], ToolChoice]:
    chat = parse_chat({"model": "tiny/llama", "messages": [{"role": "user", "content": "hi"}]} | body)
    tools = tools_of([tool.function for tool in chat.tools or ()], "tools[{}].function.parameters")
    return chosen(tools, chat.tool_choice, parallel=chat.parallel_tool_calls is not False)


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | more}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth - 1):
        made = {"properties": made}
    return made


BOTH = [function("a"), function("b")]
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("b")]}}


def test_a_tool() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    sent = function("look-at_1", strict=True, parameters=schema, description="d")
    ((tool,), choice) = read({"tools": [sent]})
    assert (tool.name, tool.parameters, tool.strict) == ("look-at_1", schema, True)
    assert list(tool.spec["function"]) == ["name", "description", "parameters"]  # as models were trained with
    assert choice == ToolChoice("auto", parallel=True)


def test_no_schema_is_any_object() -> None:
    ((tool, other), _) = read({"tools": [function("a"), function("b", parameters={"properties": {}})]})
    assert tool.parameters == {}
    assert tool.spec == {"type": "function", "function": {"name": "a"}}
    assert other.parameters == {"type": "object", "properties": {}}


def test_the_deepest_schema_that_is_taken() -> None:
    read({"tools": [function("a", parameters=nested(100))]})


@pytest.mark.parametrize(
    ("body", "names", "choice"),
    [
        ({}, "", ToolChoice("none")),
        ({"tools": []}, "", ToolChoice("none")),
        ({"tool_choice": "auto"}, "", ToolChoice("none")),
        ({"tools": BOTH, "tool_choice": "none"}, "ab", ToolChoice("none")),
        ({"tools": BOTH, "tool_choice": "required"}, "ab", ToolChoice("required")),
        ({"tools": BOTH, "parallel_tool_calls": False}, "ab", ToolChoice("auto", parallel=False)),
        ({"tools": BOTH, "tool_choice": function("b")}, "ab", ToolChoice("named", "b", parallel=False)),
        ({"tools": BOTH, "tool_choice": ALLOWED}, "b", ToolChoice("auto")),
    ],
)
def test_the_choice(body: dict[str, Any], names: str, choice: ToolChoice) -> None:
    tools, made = read(body)
    assert "".join(tool.name for tool in tools) == names
    assert made == choice


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [function("")]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("a\n")]}, "tools[0].function.name"),
        ({"tools": [function("a" * 65)]}, "tools[0].function.name"),
        ({"tools": [function("a"), function("a")]}, "tools"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [function("a", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function("b"), function("a", parameters={"type": "array"})]}, "tools[1].function.parameters"),
        ({"tools": [function("a", parameters={"type": ["object"]})]}, "tools[0].function.parameters"),
        ({"tools": [function("a", parameters=nested(101))]}, "tools[0].function.parameters"),
        ({"tools": [function("a", mood=1)]}, "tools[0].function.mood"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": BOTH, "tool_choice": "any"}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": 1}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": {}}, "tool_choice.type"),
        ({"tools": BOTH, "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": BOTH, "tool_choice": function("c")}, "tool_choice"),
        ({"tool_choice": function("a")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"functions": [{"name": "a"}], "tools": BOTH}, "functions"),
        ({"function_call": "auto", "tool_choice": "auto"}, "function_call"),
        ({"function_call": "auto", "tools": BOTH}, "function_call"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        read(body)
    assert error.value.param == param
    assert param.rpartition(".")[2].partition("[")[0] in error.value.message
