"""JSON as a model writes it, read character by character from a `Cursor`: where a value ends, and whether it is one.

Strict (RFC 8259) but for one thing that models do: line breaks and other control characters in strings, which `mend` escapes.
Nothing is built and nothing recurses, so that neither length nor depth costs more than the text.
"""

from __future__ import annotations

import json
import re

from pagemill_server.text.cursor import Cursor, Reading

BLANK = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.\w]*")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"{": "}", "[": "]"}


def value(cursor: Cursor, mend: bool = False) -> Reading[bool]:
    """Reads one value; false: what comes is none, and the cursor stands within it."""
    closing: list[str] = []  # what ends each array and object that is open
    while True:
        yield from cursor.skip(BLANK)
        begins = yield from cursor.peek()
        if begins in _CLOSING:  # "" is in no dict
            cursor.at += 1
            closing.append(_CLOSING[begins])
            if not (yield from ends(cursor, closing[-1])):
                if begins == "{" and not (yield from _key(cursor, mend)):
                    return False
                continue
            closing.pop()
        elif not (yield from _plain_value(cursor, begins, mend)):
            return False
        while closing and (yield from ends(cursor, closing[-1])):
            closing.pop()
        if not closing:
            return True
        if not (yield from cursor.word(",")) or (closing[-1] == "}" and not (yield from _key(cursor, mend))):
            return False


def string(cursor: Cursor) -> Reading[str | None]:
    """Reads a string; its value, or None where none comes, or one that is no Unicode. Only where nothing is taken meanwhile."""
    place = cursor.at
    if not (yield from _string(cursor, False)):
        return None
    return text_of(cursor.since(place))


def text_of(literal: str) -> str | None:
    """What a string stands for; None for half a surrogate pair, which no answer could be encoded with."""
    text: str = json.loads(literal, strict=False)
    return text if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) else None


def ends(cursor: Cursor, mark: str) -> Reading[bool]:
    """Whether `mark` comes next, after white space; it is read then."""
    yield from cursor.skip(BLANK)
    return (yield from cursor.word(mark))


def _plain_value(cursor: Cursor, begins: str, mend: bool) -> Reading[bool]:
    if begins == '"':
        return (yield from _string(cursor, mend))
    word = ""
    while (character := (yield from cursor.peek())) and _WORD.fullmatch(character):
        word += character
        cursor.at += 1
    return _SCALAR.fullmatch(word) is not None


def _key(cursor: Cursor, mend: bool) -> Reading[bool]:
    yield from cursor.skip(BLANK)
    return (yield from _string(cursor, mend)) and (yield from ends(cursor, ":"))


def _string(cursor: Cursor, mend: bool) -> Reading[bool]:
    if not (yield from cursor.word('"')):
        return False
    while True:
        yield from cursor.skip(_PLAIN)
        character = yield from cursor.peek()
        if character == "\\":
            cursor.at += 1
            if not (yield from _escape(cursor)):
                return False
        elif character and character < " " and mend:
            cursor.put(json.dumps(character)[1:-1])
        elif character:
            cursor.at += 1
            if character == '"':
                return True
        else:
            return False


def _escape(cursor: Cursor) -> Reading[bool]:
    character = yield from cursor.peek()
    if character != "u":
        cursor.at += character in _ESCAPED
        return character in _ESCAPED
    cursor.at += 1
    for _ in range(4):
        if (yield from cursor.peek()) not in _HEX:
            return False
        cursor.at += 1
    return True
