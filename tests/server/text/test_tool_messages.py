from __future__ import annotations

import json

import pytest

from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tool_formats.hermes import Hermes
from pagemill_server.text.tool_messages import Message, messages_with_tools
from pagemill_server.text.tools import Tool
from tests.server.text.chat_templates import GEMMA
from tests.server.text.parsed import parse
from tests.server.tiny import CHAT_TEMPLATE

SPEC = {"type": "function", "function": {"name": "f", "description": "Zürich <&>", "parameters": {"type": "object"}}}
TOOLS = [Tool("f", {"type": "object"}, False, SPEC)]
ASK: Message = {"role": "user", "content": "How warm?"}
ARGUMENTS = {"place": "Zürich", "text": "</tool_call>"}


def called(arguments: object, content: str | None = None) -> Message:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
    }


def test_the_offer_comes_after_the_users_own_system_message() -> None:
    (alone,) = (m for m in messages_with_tools([ASK], TOOLS) if m["role"] == "system")
    assert alone["content"].startswith("# Tools\n\n")
    assert f"<tools>\n{json.dumps(SPEC, ensure_ascii=False)}\n</tools>" in alone["content"]
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in alone["content"]
    system, user = messages_with_tools([{"role": "system", "content": "Be brief."}, ASK], TOOLS)
    assert system["content"] == f"Be brief.\n\n{alone['content']}"
    assert user == ASK


def test_nothing_is_offered_and_nothing_changes_without_tools() -> None:
    assert messages_with_tools([ASK], []) == [ASK]
    assert messages_with_tools([], []) == []


@pytest.mark.parametrize("arguments", [ARGUMENTS, json.dumps(ARGUMENTS, ensure_ascii=False)], ids=["object", "text"])
def test_calls_are_written_as_the_parser_reads_them(arguments: object) -> None:
    (message,) = messages_with_tools([called(arguments, "Let me see.")], [])
    seen = parse(Hermes().parser(()), [message["content"]])
    assert "tool_calls" not in message
    assert seen.words == "Let me see."
    assert [(name, json.loads(text)) for name, text in seen.calls] == [("f", ARGUMENTS)]


def test_answers_in_a_row_are_one_turn_of_the_users() -> None:
    answers: list[Message] = [{"role": "tool", "tool_call_id": str(i), "content": f"{i}°"} for i in (1, 2)]
    made = messages_with_tools([ASK, called({}), *answers, called({}), answers[0]], [])
    assert [message["role"] for message in made] == ["user", "assistant", "user", "assistant", "user"]
    assert made[2]["content"] == "<tool_response>\n1°\n</tool_response>\n<tool_response>\n2°\n</tool_response>"
    assert made[4]["content"] == "<tool_response>\n1°\n</tool_response>"


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, GEMMA], ids=["with system messages", "without"])
def test_a_template_that_knows_no_tools_renders_all_of_it(source: str) -> None:
    template = ChatTemplate(source)
    messages = [ASK, called(ARGUMENTS), {"role": "tool", "content": "20°"}]
    prompt = template.render(messages_with_tools(messages, TOOLS, takes_system=template.takes_system))
    places = [prompt.index(part) for part in ("<tools>", "How warm?", '{"name": "f", "arguments": {"place"', "20°")]
    assert places == sorted(places)
    assert template.takes_system == (source is CHAT_TEMPLATE)
