"""Mistral: `[TOOL_CALLS]` before a JSON array of calls (tokenizers up to v7), or before each `name[ARGS]{…}` (from v11 on).

The newer one may have `[CALL_ID]` and an id after the name, or nothing between the name and its arguments.
https://github.com/mistralai/mistral-common
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence

from pagemill_server.text import grammar
from pagemill_server.text.cursor import Reading
from pagemill_server.text.grammar import Grammar
from pagemill_server.text.json_reading import BLANK, ends
from pagemill_server.text.message import MessageParser
from pagemill_server.text.tool_formats.call_object import read_call
from pagemill_server.text.tool_formats.calls import CallReader
from pagemill_server.text.tool_formats.grammars import arguments, call_object, words_or_marked
from pagemill_server.text.tools import Tool

CALLS, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w.:/-]*")
_ALPHANUMERIC = string.ascii_letters + string.digits


class Mistral:
    """`named`: the newer way to write calls. Both are read, whichever it writes."""

    name = "mistral"
    markers: tuple[str, ...] = (CALLS, ID, ARGS)

    def __init__(self, named: bool = False) -> None:
        self._named = named

    def parser(self, tools: Sequence[Tool]) -> MessageParser:
        return _Parser()

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        return grammar.sequence(grammar.literal(CALLS), self._begun(tools, parallel))

    def words_or_calls(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        return words_or_marked(CALLS, self._begun(tools, parallel))

    def _begun(self, tools: Sequence[Tool], parallel: bool) -> Grammar:
        """Calls but for the first marker."""
        if self._named:
            args = grammar.literal(ARGS)
            calls = (grammar.sequence(grammar.literal(tool.name), args, arguments(tool)) for tool in tools)
            call = grammar.one_of(*calls)
            return grammar.repeated(call, grammar.literal(CALLS)) if parallel else call
        call = call_object(tools, "arguments")
        listed = grammar.repeated(call, grammar.literal(", ")) if parallel else call
        return grammar.sequence(grammar.literal("["), listed, grammar.literal("]"))

    def call_id(self) -> str:
        """Nine letters and digits; the template refuses any other."""
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class _Parser(CallReader):
    after_broken = (CALLS,)

    def message(self) -> Reading[None]:
        while (yield from self.words_until(CALLS)):
            yield from self.cursor.skip(BLANK)
            array = yield from self.cursor.word("[")
            if not (yield from (self._array() if array else self._named())):
                self.no_call(CALLS)
        self.finish_words()

    def _array(self) -> Reading[bool]:
        """Whether there is any call in it. What breaks off after one stays unread."""
        found = False
        while True:
            yield from self.cursor.skip(BLANK)
            if not (yield from read_call(self, marked=True)):
                break
            found = True
            self.cursor.take()
            if not (yield from ends(self.cursor, ",")):
                if (yield from ends(self.cursor, "]")) or self.cursor.at_end:
                    self.cursor.take()
                break
        if found:
            self.cursor.back()
        return found

    def _named(self) -> Reading[bool]:
        place = self.cursor.at
        yield from self.cursor.skip(_NAME)
        name = self.cursor.since(place)
        if (yield from self.cursor.word(ID)):
            yield from self.cursor.skip(_NAME)
        yield from self.cursor.word(ARGS)
        yield from self.cursor.skip(BLANK)
        if not name or (yield from self.cursor.peek()) != "{":
            return False
        self.begin(name)
        yield from self.stream_arguments()
        return True
