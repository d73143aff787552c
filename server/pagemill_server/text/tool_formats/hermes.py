"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, new lines within and between, one after another.

White space around a call belongs to the format: their templates put it there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagemill_server.text import grammar
from pagemill_server.text.cursor import Reading
from pagemill_server.text.grammar import Grammar
from pagemill_server.text.json_reading import BLANK
from pagemill_server.text.message import MessageParser
from pagemill_server.text.tool_formats.call_object import read_call
from pagemill_server.text.tool_formats.calls import CallReader
from pagemill_server.text.tool_formats.grammars import call_object, random_id, words_or_marked
from pagemill_server.text.tools import Tool

BEGIN, END = "<tool_call>", "</tool_call>"
_REST = re.compile(r"[\s}]*")  # one brace too many is a usual slip


class Hermes:
    name = "hermes"
    markers: tuple[str, ...] = (BEGIN, END)

    def parser(self, tools: Sequence[Tool]) -> MessageParser:
        return _Parser()

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        return grammar.sequence(grammar.literal(BEGIN), _begun(tools, parallel))

    def words_or_calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        return words_or_marked(BEGIN, _begun(tools, parallel))

    def call_id(self) -> str:
        return random_id()


def _begun(tools: Sequence[Tool], parallel: bool) -> Grammar:
    """Calls but for the first one's marker."""
    call = grammar.sequence(grammar.literal("\n"), call_object(tools, "arguments"), grammar.literal(f"\n{END}"))
    return grammar.repeated(call, grammar.literal(f"\n{BEGIN}")) if parallel else call


class _Parser(CallReader):
    keeps_space = False
    after_broken = (END, BEGIN)

    def message(self) -> Reading[None]:
        while (yield from self.words_until(BEGIN)):
            yield from self.cursor.skip(BLANK)
            if not (yield from read_call(self, marked=True)):
                self.no_call(BEGIN)
                continue
            yield from self._more_calls()
            yield from self._end_marker()
        self.finish_words()

    def _more_calls(self) -> Reading[None]:
        """Some models write several objects between two markers."""
        self.cursor.take()
        while True:
            yield from self.cursor.skip(BLANK)
            if (yield from self.cursor.peek()) != "{" or not (yield from read_call(self, marked=True)):
                self.cursor.back()
                return
            self.cursor.take()

    def _end_marker(self) -> Reading[None]:
        """It may be missing; what stands before it is markup, and words where it doesn't come."""
        yield from self.cursor.skip(_REST)
        if (yield from self.cursor.word(END)) or self.cursor.at_end:
            self.cursor.take()
        else:
            self.cursor.back()
