"""The items of a response's `input`, checked: whatever a response's output holds can be sent back as it came. Pure.

Raises BadRequest that names the item. `turns` makes a conversation of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from pagemill_server.api import neutral
from pagemill_server.api.messages import arguments_of
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.errors import BadRequest

_MESSAGE_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_BESIDE_TEXT = {
    "type",
    "annotations",
    "logprobs",
    "prompt_cache_breakpoint",
}  # what comes back with a part, and is not needed
NOT_NEEDED: neutral.Table = {"caller": ({"type": "direct"},), "namespace": (), "async": (False,)}


def _text(value: Any) -> str:
    """Text, whether it came as a string or as parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    return "\n".join(_part(place, part) for place, part in enumerate(value))


def _part(place: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    key = _MESSAGE_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        spelled = f"of type {kind[:100]}" if isinstance(kind, str) else "no object with a type"
        raise _wrong(f"part {place} is {spelled}, and this model takes text only")
    if unknown := part.keys() - {key} - _BESIDE_TEXT:
        raise _wrong(f"part {place} has an unknown key, {min(unknown)[:100]}")
    if not isinstance(text := part.get(key), str):
        raise _wrong(f'part {place} must be {{"type": "{kind}", "{key}": a string}}')
    return text


def _wrong(trouble: str) -> PydanticCustomError:
    return PydanticCustomError("content", "{trouble}", {"trouble": trouble})


class ItemText(Body):
    """What `_part` takes."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


class ItemRefusal(Body):
    type: Literal["refusal"]
    refusal: str
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | list[ItemText | ItemRefusal])]


class _Item(Body):
    id: str | None = None  # of the response that it came in; the server keeps none
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    phase: Literal["commentary", "final_answer"] | None = None  # templates don't know it


class CallItem(_Item):
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[dict[str, Any], BeforeValidator(arguments_of, json_schema_input_type=str)]


class ResultItem(_Item):
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Text
    name: str | None = None


class SummaryPart(Body):
    type: Literal["summary_text"]
    text: str


class ReasoningPart(Body):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: list[SummaryPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content or self.summary or ())


InputItem = MessageItem | CallItem | ResultItem | ReasoningItem

ITEMS: dict[str, type[InputItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": ResultItem,
    "reasoning": ReasoningItem,
}


def item_of(place: int, sent: Any) -> InputItem:
    where = f"input[{place}]"
    if not isinstance(sent, dict):
        raise BadRequest(f"{where} must be an object.", param=where, code="invalid_value")
    kind = sent.get("type") or ("message" if "role" in sent else "item_reference")
    if kind == "item_reference":
        raise BadRequest(
            f"{where} refers to an item of another response, and this server keeps none; send the item itself.",
            param=where,
            code="unsupported_value",
        )
    if not isinstance(kind, str) or kind not in ITEMS:
        raise BadRequest(
            f"{where}.type {str(kind)[:100]!r} is not supported by this server; it takes {', '.join(ITEMS)}.",
            param=f"{where}.type",
            code="unsupported_value",
        )
    item = validated(ITEMS[kind], neutral.without_neutral(sent, NOT_NEEDED, f"{where}."), f"{where}.")
    if isinstance(item, ReasoningItem) and item.encrypted_content and not item.text:
        name = f"{where}.encrypted_content"
        raise BadRequest(f"{name} can't be read by this server.", param=name, code="unsupported_value")
    return item
