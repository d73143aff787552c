"""A chat's messages as clients send them, checked, and as chat templates take them. Pure.

`Message` is one turn of /v1/chat/completions in all of its roles; `for_template` gives the template what it knows: no `developer`,
no legacy functions, a call's arguments as an object. What of it a template reads is the template's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from pagemill_server.api.nesting import MAX_DEPTH, too_deep
from pagemill_server.api.strict_body import Body
from pagemill_server.errors import BadRequest

_ROLE = {"developer": "system", "function": "tool"}  # OpenAI's newer word and its older one; templates know the others
ONLY = {
    "tool_calls": ("assistant",),
    "function_call": ("assistant",),
    "refusal": ("assistant",),
    "reasoning": ("assistant",),
    "reasoning_content": ("assistant",),
    "tool_call_id": ("tool",),
}
_PART_KEYS = {"text": {"type", "text", "cache_control"}, "refusal": {"type", "refusal"}}


def _content(value: Any) -> str | None:
    """Text, whether it came as a string, as parts or as null."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a string, a list of text parts or null")
    return "\n".join(_part(place, part) for place, part in enumerate(value))


def _part(place: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PART_KEYS:
        raise _wrong_part(f"part {place} is {_spelled(kind)}, and this model takes text only")
    if unknown := part.keys() - _PART_KEYS[kind]:
        raise _wrong_part(f"part {place} has an unknown key, {min(unknown)[:100]}")
    if not isinstance(text := part.get(kind), str):
        raise _wrong_part(f'part {place} must be {{"type": "{kind}", "{kind}": a string}}')
    return text


def _wrong_part(trouble: str) -> PydanticCustomError:
    return PydanticCustomError("content", "{trouble}", {"trouble": trouble})


def _spelled(kind: object) -> str:
    return f"of type {kind[:100]}" if isinstance(kind, str) else "no object with a type"


def arguments_of(text: Any) -> dict[str, Any]:
    """A call's arguments, which clients send as the JSON text that a model wrote; "" is a call without any."""
    if not isinstance(text, str):
        raise PydanticCustomError("arguments", "must be a string with the JSON of an object")
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise PydanticCustomError("arguments", "is not valid JSON: {trouble}", {"trouble": str(error)}) from None
    if not isinstance(arguments, dict):
        raise PydanticCustomError("arguments", "must be the JSON of an object")
    if too_deep(arguments):
        raise PydanticCustomError("arguments", f"is nested deeper than {MAX_DEPTH}")
    return arguments


class FunctionCall(Body):
    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[dict[str, Any], BeforeValidator(arguments_of, json_schema_input_type=str)]


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # who joins a stream's deltas may leave it in; the order says the same

    def for_template(self) -> dict[str, Any]:
        return call_for_template(self.id, self.function.name, self.function.arguments)


def call_for_template(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers documents it: arguments are an object, which templates write as their family's JSON."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class TextPart(Body):
    """What `_part` takes."""

    type: Literal["text"]
    text: str
    cache_control: Any = None


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


Content = str | list[TextPart | RefusalPart] | None


class Message(Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_content, json_schema_input_type=Content)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None  # of OpenAI's older functions, as the role `function`
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # its older name
    cache_control: Any = None  # here prompts are cached without being asked

    def for_template(self, place: int = 0, answers: str = "") -> dict[str, Any]:
        """`place` names a legacy call, which has no id; `answers` is the id of the one that a legacy result is for."""
        made: dict[str, Any] = {"role": _ROLE.get(self.role, self.role), "content": self._words()}
        if self.name:
            made["name"] = self.name
        if calls := self._calls(place):
            made["tool_calls"] = calls
        if thoughts := self.reasoning or self.reasoning_content:
            made |= {"reasoning": thoughts, "reasoning_content": thoughts}  # templates read one or the other
        if call_id := self.tool_call_id or (answers if self.role == "function" else ""):
            made["tool_call_id"] = call_id
        return made

    def _words(self) -> str | None:
        """Some templates tell a call from an answer by content that is none."""
        words = self.refusal if self.content is None else self.content
        return words if words is not None or self.tool_calls or self.function_call else ""

    def _calls(self, place: int) -> list[dict[str, Any]]:
        if self.function_call is not None:
            return [call_for_template(_legacy_id(place), self.function_call.name, self.function_call.arguments)]
        return [call.for_template() for call in self.tool_calls or ()]


def _legacy_id(place: int) -> str:
    """Nine letters and digits: all that Mistral's template takes."""
    return f"call{place % 100_000:05d}"


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """All of them; the older functions become tools."""
    made, legacy = [], ""
    for place, message in enumerate(messages):
        made.append(message.for_template(place, legacy))
        if message.function_call is not None:
            legacy = _legacy_id(place)
    return made


def check_messages(messages: Sequence[Message]) -> None:
    """What types alone do not say. Raises BadRequest."""
    for place, message in enumerate(messages):
        for name, roles in ONLY.items():
            if getattr(message, name) is not None and message.role not in roles:
                raise _refused(place, name, f"belongs to messages of the {' or '.join(roles)}")
        if message.content is None and message.role != "assistant":
            raise _refused(place, "content", "is missing")
        if message.function_call is not None and message.tool_calls:
            raise _refused(place, "function_call", "and tool_calls are two words for the same; send one of them")


def _refused(place: int, name: str, trouble: str) -> BadRequest:
    param = f"messages[{place}].{name}"
    return BadRequest(f"{param} {trouble}.", param=param, code="invalid_value")
