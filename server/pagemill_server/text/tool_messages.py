"""Tools for a chat template that knows nothing of them: offered in the system message, called and answered in plain turns. Pure.

The words are Hermes' and Qwen's, whose format (`tool_formats/hermes`) such a model is then asked to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagemill_server.text.tools import Tool

Message = Mapping[str, Any]

_OFFER = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def messages_with_tools(
    messages: Sequence[Message], tools: Sequence[Tool], *, takes_system: bool = True
) -> list[Message]:
    """The same conversation in messages of just a role and content, with the tools in its system message.

    A template that takes no system message gets them before the first message's content.
    """
    plain = _answers_joined([_plain(message) for message in messages])
    if not tools:
        return plain
    return _with_offer(plain, _offer(tools), "system" if takes_system or not plain else plain[0]["role"])


def _offer(tools: Sequence[Tool]) -> str:
    return _OFFER.format(tools="\n".join(_json(tool.spec) for tool in tools))


def _with_offer(messages: list[Message], offer: str, role: str) -> list[Message]:
    """In the first message, if it is of that role, else in one before it."""
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": offer}, *messages]
    content = messages[0].get("content")
    joined = (content, offer) if role == "system" else (offer, content)
    return [{**messages[0], "content": "\n\n".join(filter(None, joined))}, *messages[1:]]


def _plain(message: Message) -> Message:
    """One message without `tool_calls` and without the role of a tool."""
    content = message.get("content")
    if message["role"] == "tool":
        return {"role": "tool", "content": f"<tool_response>\n{content or ''}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = "\n".join(_call(call["function"]) for call in message["tool_calls"])
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": f"{content}\n{calls}" if content else calls}


def _call(function: Mapping[str, Any]) -> str:
    """The arguments may be JSON text, as clients send them, or an object already."""
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {text}}}\n</tool_call>'


def _answers_joined(messages: list[Message]) -> list[Message]:
    """Answers of tools in a row are one user's turn: templates insist that roles take turns."""
    joined: list[Message] = []
    after_tool = False
    for message in messages:
        from_tool = message["role"] == "tool"
        if from_tool and after_tool:
            joined[-1] = {"role": "user", "content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append({"role": "user", "content": message["content"]} if from_tool else message)
        after_tool = from_tool
    return joined


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
