"""`input` of a response as the turns of a conversation, as chat templates take them. Pure.

Reasoning, words and calls that follow each other are one turn of the assistant. Raises BadRequest that names the item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagemill_server.api.messages import call_for_template
from pagemill_server.api.protocol import MAX_MESSAGES
from pagemill_server.api.responses.items import CallItem, InputItem, MessageItem, ReasoningItem, ResultItem, item_of
from pagemill_server.errors import BadRequest

_ROLE = {"developer": "system"}  # OpenAI's newer word; templates know the other


def messages_of(sent: Any, instructions: str | None) -> list[dict[str, Any]]:
    """`sent` is the body's `input`. Raises BadRequest."""
    turns = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(sent, str) and sent:
        return [*turns, {"role": "user", "content": sent}]
    if not isinstance(sent, list) or not sent:
        raise BadRequest("input must be a string or a list of items, and not empty.", param="input")
    if len(sent) > MAX_MESSAGES:
        raise BadRequest(f"input holds {len(sent)} items; at most {MAX_MESSAGES} are taken.", param="input")
    return [*turns, *_turns([item_of(place, item) for place, item in enumerate(sent)])]


@dataclass(slots=True)
class _Turn:
    """The assistant's, while its items come. Lists, for a body may hold a hundred thousand of them."""

    thoughts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)

    def takes(self, item: InputItem) -> bool:
        """Thoughts come first; words beside calls are one turn with them, words after words are the next."""
        match item:
            case ReasoningItem():
                return not self.words and not self.calls
            case MessageItem(role="assistant"):
                return not self.words or bool(self.calls)
            case CallItem():
                return True
        return False

    def take(self, item: InputItem) -> None:
        match item:
            case ReasoningItem():
                self.thoughts.append(item.text)
            case MessageItem():
                self.words.append(item.content)
            case CallItem():
                self.calls.append(call_for_template(item.call_id, item.name, item.arguments))

    def for_template(self) -> dict[str, Any]:
        """Some templates tell a call from an answer by content that is none; others can't do without any."""
        content = "\n".join(self.words)
        made: dict[str, Any] = {"role": "assistant", "content": content if self.words or not self.calls else None}
        if thoughts := "\n".join(filter(None, self.thoughts)):
            made |= {"reasoning": thoughts, "reasoning_content": thoughts}  # templates read one or the other
        return made | ({"tool_calls": self.calls} if self.calls else {})


def _turns(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The items as turns; those of the assistant that follow each other are put together."""
    turns: list[dict[str, Any] | _Turn] = []
    names: dict[str, str] = {}  # of the functions, by their calls' ids
    for place, item in enumerate(items):
        if isinstance(item, ResultItem):
            turns.append(_result(item, names, f"input[{place}].call_id"))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            turns.append({"role": _ROLE.get(item.role, item.role), "content": item.content})
        else:
            if isinstance(item, CallItem):
                names[item.call_id] = item.name
            _open_turn(turns, item).take(item)
    return [turn.for_template() if isinstance(turn, _Turn) else turn for turn in turns]


def _open_turn(turns: list[dict[str, Any] | _Turn], item: InputItem) -> _Turn:
    last = turns[-1] if turns else None
    if isinstance(last, _Turn) and last.takes(item):
        return last
    turns.append(turn := _Turn())
    return turn


def _result(item: ResultItem, names: Mapping[str, str], where: str) -> dict[str, Any]:
    if item.call_id not in names:
        raise BadRequest(
            f"{where} is that of no function_call before it; this server keeps no calls, so send the call as well.",
            param=where,
            code="invalid_value",
        )
    return {"role": "tool", "content": item.output, "tool_call_id": item.call_id, "name": names[item.call_id]}
