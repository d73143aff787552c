"""One choice's message in the making: its text through the turn's parser, and the deltas of /v1/chat/completions.

Streamed or not, a message is the same deltas joined. Tokens with log-probabilities wait for the delta that shows their text. Held
by `api/reply`; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.api.conversation import Turn
from pagemill_server.text.message import CallArguments, CallBegins, MessageEvent, Thought, Words

Delta = dict[str, Any]


class Speech:
    """`legacy`: a call is said as `function_call`, OpenAI's older word. Without `reasoning` thoughts are left out."""

    def __init__(self, turn: Turn | None, *, legacy: bool = False, reasoning: bool = True) -> None:
        self.called = False  # a tool call has begun
        self._parser = turn.parser() if turn is not None and turn.parser is not None else None
        self._turn = turn
        self._legacy = legacy
        self._reasoning = reasoning
        self._waiting: list[ShownToken] = []

    def push(self, piece: Piece) -> list[MessageEvent]:
        """What the piece brought, words and thoughts in as few events as there can be."""
        if self._parser is None:
            return [Words(piece.text)] if piece.text else []
        events = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            events += self._parser.finish()
        return _merged(events)

    def deltas(self, piece: Piece) -> list[tuple[Delta, Sequence[ShownToken]]]:
        """Each with the tokens to show beside it."""
        events = self.push(piece)
        deltas = [self._delta(event) for event in events if self._reasoning or not isinstance(event, Thought)]
        self._waiting += piece.tokens
        # What has no text to wait for, a special token, goes out with nothing said; so does what a marker took at the end.
        mute = not piece.text and self._parser is None
        if not deltas and self._waiting and (mute or piece.finish_reason is not None):
            deltas = [{"content": ""}]
        if not deltas:
            return []
        tokens, self._waiting = self._waiting, []
        return [(deltas[0], tokens), *((delta, ()) for delta in deltas[1:])]

    def _delta(self, event: MessageEvent) -> Delta:
        match event:
            case Words(text):
                return {"content": text}
            case Thought(text):
                return {"reasoning": text}
            case CallBegins(index, name):
                self.called = True
                return self._begun(index, name)
            case CallArguments(index, text):
                call = {"arguments": text}
                return {"function_call": call} if self._legacy else {"tool_calls": [{"index": index, "function": call}]}

    def _begun(self, index: int, name: str) -> Delta:
        call = {"name": name, "arguments": ""}
        if self._legacy:
            return {"function_call": call}
        assert self._turn is not None
        return {"tool_calls": [{"index": index, "id": self._turn.call_id(), "type": "function", "function": call}]}


def message_of(deltas: Iterable[Delta], *, thinks: bool) -> dict[str, Any]:
    """The whole message: what a client makes of the stream. With `thinks` it says also that there was no reasoning."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    if thinks:
        message["reasoning"] = None
    for delta in deltas:
        for key in ("content", "reasoning"):
            if key in delta:
                message[key] = (message[key] or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            _join_call(message.setdefault("tool_calls", []), call)
        if "function_call" in delta:
            made = message.setdefault("function_call", {"name": "", "arguments": ""})
            for key, text in delta["function_call"].items():
                made[key] += text
    # A last token without text says an empty content: beside a call that is none.
    called = "tool_calls" in message or "function_call" in message
    message["content"] = message["content"] or (None if called else "")
    return message


def _join_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    """Calls come one after the other, each with its id first."""
    if "id" in delta:
        calls.append({key: delta[key] for key in ("id", "type")} | {"function": dict(delta["function"])})
    else:
        calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


def _merged(events: Sequence[MessageEvent]) -> list[MessageEvent]:
    """Neighbours of one kind as one, and none that says nothing."""
    made: list[MessageEvent] = []
    for event in events:
        match made[-1] if made else None, event:
            case Words(before), Words(text):
                made[-1] = Words(before + text)
            case Thought(before), Thought(text):
                made[-1] = Thought(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                made[-1] = CallArguments(index, before + text)
            case _:
                made.append(event)
    return [event for event in made if isinstance(event, CallBegins) or event.text]
