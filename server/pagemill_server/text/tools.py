"""A tool that a client offers, and what a model family's format of tool calls must know. Pure.

One format a file in `text/tool_formats`; `api/conversation` asks for it, `loading` finds which one a model has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagemill_server.text.grammar import Grammar
from pagemill_server.text.message import MessageParser


@dataclass(frozen=True, slots=True)
class Tool:
    """A function; `spec` is what templates get: {"type": "function", "function": {...}} as the client sent it."""

    name: str
    parameters: Mapping[str, Any]  # JSON schema of the arguments, an object; {} where the client gave none: any object
    strict: bool  # arguments must match the schema, which a grammar sees to
    spec: Mapping[str, Any]


class ToolFormat(Protocol):
    """How a family of models writes its calls."""

    name: str  # as --tool-call-parser spells it
    markers: tuple[str, ...]  # of these, those that are special tokens of the tokenizer must be kept as text

    def parser(self, tools: Sequence[Tool]) -> MessageParser:
        """Of one sequence: words and calls. A call of a tool that wasn't offered is still a call: the client decides."""
        ...

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """Exactly what the parser reads as one call of one of these tools or, with `parallel`, one or more."""
        ...

    def words_or_calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """Any words; what the parser begins to read as a call is one of these calls, to its end."""
        ...

    def call_id(self) -> str:
        """A new id, as the family's template wants ids to look."""
        ...
