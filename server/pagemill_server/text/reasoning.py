"""Reasoning that a model marks in its text, told apart from the answer: `<think>…</think>` in its variants. Pure.

What follows thoughts goes to the parser of tool calls or is words. New lines next to a marker belong to the marker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pagemill_server.text.cursor import Pulled, Reading
from pagemill_server.text.message import MessageEvent, MessageParser, Thought, Words

Stand = Literal["open", "closed", "untouched"]  # where the prompt leaves the reasoning


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning."""

    name: str  # as --reasoning-parser spells it
    begin: str  # the marker before it
    end: str  # the marker after it
    unmarked: bool = False  # text that doesn't begin with the marker is reasoning nonetheless

    @property
    def markers(self) -> tuple[str, str]:
        """Of these, those that are special tokens of the tokenizer must be kept as text."""
        return self.begin, self.end


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    format.name: format
    for format in (
        ReasoningFormat("deepseek_r1", "<think>", "</think>", unmarked=True),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("qwen3", "<think>", "</think>"),
    )
}

_BLANK = re.compile(r"\s*")
_NEW_LINES = re.compile(r"[\r\n]*")


def stand_of(reasoning: ReasoningFormat, prompt: str, continued: str = "") -> Stand:
    """Where a rendered prompt leaves the reasoning. Only its end counts, which is the template's: what users write is before it.

    `continued` is the assistant's message that the prompt ends with, where the model goes on with one.
    """
    begun, ended = continued.rfind(reasoning.begin), continued.rfind(reasoning.end)
    if begun != ended:  # either is there
        return "open" if begun > ended else "closed"
    end = prompt.rstrip()
    if end.endswith(reasoning.begin):
        return "open"
    return "closed" if end.endswith(reasoning.end) else "untouched"


def reasoning_parser(reasoning: ReasoningFormat, stand: Stand = "untouched") -> MessageParser:
    """Of one sequence after a prompt that ends so: thoughts, then words."""
    return _ReasoningParser(reasoning, stand)


def with_reasoning(reasoning: MessageParser, then: MessageParser | None) -> MessageParser:
    """`reasoning`'s thoughts; its words as `then` reads them."""
    return reasoning if then is None else _Chained(reasoning, then)


class _ReasoningParser(Pulled):
    def __init__(self, reasoning: ReasoningFormat, stand: Stand) -> None:
        super().__init__()
        self._format = reasoning
        self._open = stand == "open" or (stand == "untouched" and reasoning.unmarked)
        self._thinking = False  # something was thought already
        self._blank = ""  # white space that may turn out to stand before the end marker

    def message(self) -> Reading[None]:
        cursor, end = self.cursor, self._format.end
        yield from cursor.skip(_BLANK)
        if (yield from cursor.word(self._format.begin)) or self._open:
            cursor.take()
            self.sink = self._think
            ended = yield from cursor.until((end,))
            self.hand_on()
            self.sink = None
            if not ended:
                return
            cursor.at += len(end)
            yield from cursor.skip(_NEW_LINES)
            cursor.take()
        self.sink = self._say
        yield from cursor.until(())

    def _think(self, text: str) -> None:
        text = self._blank + text
        body = text.rstrip()
        self._blank = text[len(body) :]
        if body:
            self.events.append(Thought(body if self._thinking else body.lstrip()))
            self._thinking = True

    def _say(self, text: str) -> None:
        self.events.append(Words(text))


class _Chained:
    def __init__(self, reasoning: MessageParser, then: MessageParser) -> None:
        self._reasoning = reasoning
        self._then = then

    def push(self, text: str) -> list[MessageEvent]:
        return self._through(self._reasoning.push(text))

    def finish(self) -> list[MessageEvent]:
        return [*self._through(self._reasoning.finish()), *self._then.finish()]

    def _through(self, events: list[MessageEvent]) -> list[MessageEvent]:
        read: list[MessageEvent] = []
        for event in events:
            read += self._then.push(event.text) if isinstance(event, Words) else [event]
        return read
