"""One call as a JSON object, `{"name": …, "arguments": {…}}`, its keys in any order. Used by all formats that write calls so."""

from __future__ import annotations

import json

from pagemill_server.text import json_reading
from pagemill_server.text.cursor import Reading
from pagemill_server.text.json_reading import BLANK, ends
from pagemill_server.text.tool_formats.calls import CallReader

_ARGUMENTS = ("arguments", "parameters")  # models write either, whatever they were shown
_KNOWN = ("name", *_ARGUMENTS, "type", "id")  # JSON that nothing else marks as a call may hold no more


def read_call(reader: CallReader, marked: bool) -> Reading[bool]:
    """Reads one and says so; false: it is none, and nothing was taken. Not `marked`: only what can't well be anything else."""
    call = _CallObject(reader, marked)
    is_call = yield from call.read()
    return is_call or call.begun


class _CallObject:
    def __init__(self, reader: CallReader, marked: bool) -> None:
        self._reader = reader
        self._cursor = reader.cursor
        self._marked = marked
        self._name: str | None = None
        self._arguments: str | None = None  # those that came before the name
        self.begun = False

    def read(self) -> Reading[bool]:
        if not (yield from self._cursor.word("{")) or (yield from ends(self._cursor, "}")):
            return False
        while True:
            if not (yield from self._member()):
                return False
            if not (yield from ends(self._cursor, ",")):
                return (yield from ends(self._cursor, "}")) and self._whole()

    def _member(self) -> Reading[bool]:
        """One key with its value; false: it fits no call."""
        yield from self._cursor.skip(BLANK)
        key = yield from json_reading.string(self._cursor)
        if key is None or not (yield from ends(self._cursor, ":")):
            return False
        if not (self._marked or self.begun or key in _KNOWN):
            return False
        yield from self._cursor.skip(BLANK)
        if key == "name" and self._name is None:
            self._name = yield from json_reading.string(self._cursor)
            return bool(self._name)
        if key in _ARGUMENTS and self._arguments is None and not self.begun:
            return (yield from self._read_arguments())
        return (yield from json_reading.value(self._cursor))

    def _read_arguments(self) -> Reading[bool]:
        begins = yield from self._cursor.peek()
        if begins == "{" and self._name:
            self._begin(self._name)
            return (yield from self._reader.stream_arguments())
        place = self._cursor.at
        if not (yield from json_reading.value(self._cursor)):
            return False
        self._arguments = _object_text(self._cursor.since(place))
        return self._arguments is not None

    def _whole(self) -> bool:
        """At the closing brace."""
        if not self.begun:
            if not self._name or (self._arguments is None and not self._marked):
                return False
            self._begin(self._name)
            self._reader.more_arguments(self._arguments or "{}")
        return True

    def _begin(self, name: str) -> None:
        self._reader.begin(name)
        self.begun = True


def _object_text(text: str) -> str | None:
    """Arguments that came before the name, or as a string that holds them, or as null: the text of an object, or None."""
    if text.startswith("{"):
        return text
    if text == "null":
        return "{}"
    inner = json_reading.text_of(text) if text.startswith('"') else None
    try:
        return inner if inner is not None and isinstance(json.loads(inner), dict) else None
    except (ValueError, RecursionError):
        return None
