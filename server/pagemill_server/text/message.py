"""An assistant's message as it comes out of generated text: thoughts, words and tool calls, in pieces. What every parser yields.

Parsers take text in any pieces and give the same events joined, however it is cut: that is why streamed and unstreamed answers
parse alike. Made by `text/reasoning` and `text/tool_formats`; read by the endpoints. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Words:
    """More of what is said to the user (`content`)."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning (`reasoning`)."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The model calls a tool. `index` counts the message's calls from 0 on."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: joined they are the JSON text of an object, as the model wrote it."""

    index: int
    text: str


MessageEvent = Words | Thought | CallBegins | CallArguments


class MessageParser(Protocol):
    """One sequence's text. Holds back what may become a marker; nothing is lost: what is no call after all comes out as words."""

    def push(self, text: str) -> list[MessageEvent]: ...

    def finish(self) -> list[MessageEvent]:
        """What was held back, when the sequence has ended."""
        ...
