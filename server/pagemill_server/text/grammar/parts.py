"""Grammars as values: what a text may be, put together from parts. Pure: knows neither tokens nor a model.

A part is one of llguidance's grammars (`lark_grammar`, `json_schema`), or of our own kinds: `literal` and `text_until`, which
`compiler` writes out once it knows which texts are tokens, and `cfg`, a client's Lark, which has tighter bounds. Each part is
named by what it says, so that none gets in another's way and equal ones are one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llguidance

from pagemill_server.text.grammar import bounds
from pagemill_server.text.grammar.errors import InvalidGrammar
from pagemill_server.text.grammar.gbnf import to_lark
from pagemill_server.text.grammar.schemas import checked_schema

_TERMINAL = "start: T\nT: "


@dataclass(frozen=True, slots=True)
class Grammar:
    """Parts by name, each a JSON-able value; the first is where it starts."""

    parts: tuple[tuple[str, Mapping[str, Any]], ...]


def json_schema(schema: Mapping[str, Any] | bool) -> Grammar:
    """JSON that the schema accepts, on one line: a space may follow each comma and colon."""
    return _part({"json_schema": checked_schema(schema)})


def json_object() -> Grammar:
    """Any JSON object."""
    return json_schema({"type": "object"})


def choice(texts: Sequence[str]) -> Grammar:
    """One of these texts, to the letter."""
    bounds.check_choices(texts)
    return _part({"lark_grammar": _TERMINAL + " | ".join(map(_quoted, dict.fromkeys(texts)))})


def regex(pattern: str) -> Grammar:
    """All of the text matches; Rust's syntax, without look-around and back references. `\\d` is 0 to 9 only."""
    bounds.check_regex(pattern)
    if _backslashes_at_end(pattern) % 2:  # it would take the slash after it
        raise InvalidGrammar("The regular expression ends with a backslash that escapes nothing.")
    return _part({"lark_grammar": f"start: /{llguidance.regex_to_lark(_without_anchors(pattern), 'd')}/"})


def cfg(text: str) -> Grammar:
    """A grammar in Lark's notation as llguidance reads it, or in llama.cpp's GBNF (xgrammar's EBNF)."""
    return _part({"cfg": to_lark(text)})


def literal(text: str) -> Grammar:
    """This text; the tokenizer's special tokens in it count as such."""
    bounds.check_literal(text)
    return _part({"literal": text})


def text_until(marker: str) -> Grammar:
    """Any text up to the first `marker` and with it, whether the marker is a special token or ordinary text."""
    bounds.check_literal(marker)
    if not marker:
        raise InvalidGrammar("A marker has at least one character.")
    return _part({"text_until": marker})


def text_without(marker: str, pattern: str = "(?s:.*)") -> Grammar:
    """Any text that `marker` is nowhere in, nor a special token; with `pattern`, one that it matches."""
    found = re.sub(r"\W", lambda character: f"\\x{{{ord(character[0]):x}}}", marker)
    return _part({"lark_grammar": f"{_TERMINAL}/{pattern}/ & ~/(?s:.*){found}(?s:.*)/"})


def sequence(*parts: Grammar) -> Grammar:
    """One after the other."""
    return _composed(" ".join(map(_reference, parts)), parts)


def one_of(*parts: Grammar) -> Grammar:
    """Any one of them. They are told apart by how they begin: beside one that begins with any text no other is seen."""
    return _composed(" | ".join(map(_reference, parts)), parts)


def repeated(part: Grammar, separator: Grammar | None = None, most: int | None = None) -> Grammar:
    """Once or more, up to `most` times, with the separator between."""
    between, parts = ("", (part,)) if separator is None else (_reference(separator) + " ", (part, separator))
    if most == 1:
        return part
    times = "*" if most is None else f"{{0,{most - 1}}}"
    return _composed(f"{_reference(part)} ({between}{_reference(part)}){times}", parts)


def compile(grammar: Grammar) -> str:
    """As `SamplingParams.grammar` takes it. Raises InvalidGrammar for one that is larger than any may be."""
    text = json.dumps({"grammars": [{"name": name} | dict(value) for name, value in grammar.parts]})
    bounds.check_whole(text)
    return text


def _part(value: Mapping[str, Any]) -> Grammar:
    return Grammar(((_name(value), value),))


def _composed(rule: str, parts: Sequence[Grammar]) -> Grammar:
    if not parts:
        raise InvalidGrammar("A grammar needs at least one part.")
    if rule == _reference(parts[0]):
        return parts[0]
    start = _part({"lark_grammar": f"start: {rule}"})
    named = dict(start.parts)
    for part in parts:
        named |= part.parts
    return Grammar(tuple(named.items()))


def _name(value: Mapping[str, Any]) -> str:
    return "p" + hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _reference(grammar: Grammar) -> str:
    return "@" + grammar.parts[0][0]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _without_anchors(pattern: str) -> str:
    """All of the text has to match as it is; at its ends anchors say nothing, and within it they aren't known."""
    pattern = pattern.removeprefix("^")
    stripped = pattern.removesuffix("$")
    return pattern if _backslashes_at_end(stripped) % 2 else stripped


def _backslashes_at_end(pattern: str) -> int:
    return len(pattern) - len(pattern.rstrip("\\"))
