"""Llama 3.x: `{"name": …, "parameters": {…}}` from the first character on or after `<|python_tag|>`; several go with `;` between.

Nothing else marks a call that begins a message, so that only an object of just a name and arguments is one.
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
from pagemill_server.text.tool_formats.grammars import call_object, random_id
from pagemill_server.text.tools import Tool

TAG = "<|python_tag|>"
_BETWEEN = re.compile(r"[\s;]*")


class Llama3:
    name = "llama3_json"
    markers: tuple[str, ...] = (TAG,)

    def parser(self, tools: Sequence[Tool]) -> MessageParser:
        return _Parser()

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        call = call_object(tools, "parameters")
        return grammar.repeated(call, grammar.literal("; ")) if parallel else call

    def words_or_calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """What begins with a brace is a call, marked or not. The marker comes first or not at all."""
        calls = self.calls(tools, parallel=parallel)
        words = grammar.text_without(TAG, r"(?s:\s*([^\s{].*)?)")
        return grammar.one_of(words, calls, grammar.sequence(grammar.literal(TAG), calls))

    def call_id(self) -> str:
        return random_id()


class _Parser(CallReader):
    def message(self) -> Reading[None]:
        yield from self._calls_here("")
        while (yield from self.words_until(TAG)):
            if not (yield from self._calls_here(TAG)):
                self.no_call(TAG)
        self.finish_words()

    def _calls_here(self, marker: str) -> Reading[bool]:
        """As many as there are; what is none after them stays unread."""
        yield from self.cursor.skip(BLANK)
        found = False
        while (yield from self.cursor.peek()) == "{" and (yield from read_call(self, marked=bool(marker))):
            found = True
            self.cursor.take()
            yield from self.cursor.skip(_BETWEEN)
        if found and self.cursor.at_end:
            self.cursor.take()
        self.cursor.back(0 if found else len(marker))
        return found
