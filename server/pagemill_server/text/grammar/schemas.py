"""JSON schemas as the compiler gets them: within bounds, and with the layout of the JSON that they describe.

llguidance refuses by itself what it can't enforce. Some of what it can takes it minutes: that is counted here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from pagemill_server.text.grammar.bounds import MAX_CHARACTERS, MAX_REGEX_CHARACTERS, check_size
from pagemill_server.text.grammar.errors import InvalidGrammar
from pagemill_server.text.grammar.numbers import check_numbers
from pagemill_server.text.grammar.spellings import with_one_spelling

MAX_DEPTH = 64
MAX_PROPERTIES = 1000
MAX_PATTERN_PROPERTIES = 32  # each is held against each other
MAX_ALTERNATIVES = 400  # of arrays of themselves: a second, and ten of 900
MAX_LENGTH = 20_000  # of a string that says one: longer ones run into the lexer's limit in their middle
MAX_MULTIPLE = 10_000  # the product of all that numbers must be multiples of

# Of all that JSON allows between its parts this can't go on for ever, and it is how models write most of theirs.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_OPTIONS = "x-guidance"  # how llguidance is told


def checked_schema(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Raises InvalidGrammar for one that is too large, or that nothing matches."""
    if schema is False:
        raise InvalidGrammar("The schema is false, which nothing matches.")
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise InvalidGrammar("A JSON schema is an object.")
    if _OPTIONS in schema:
        raise InvalidGrammar(f"{_OPTIONS} is not supported in a JSON schema.")
    _check_counts(list(_keywords(schema)))
    check_numbers(schema)
    check_size("The JSON schema", json.dumps(schema), MAX_CHARACTERS)
    return with_one_spelling(schema) | {_OPTIONS: LAYOUT}


def _keywords(schema: object) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep, within MAX_DEPTH."""
    level: list[object] = [schema]
    for _ in range(MAX_DEPTH):
        deeper: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                yield from value.items()
                deeper += value.values()
            elif isinstance(value, list):
                deeper += value
        level = [value for value in deeper if isinstance(value, Mapping | list)]
        if not level:
            return
    raise InvalidGrammar(f"The JSON schema is nested deeper than {MAX_DEPTH}.")


def _check_counts(keywords: list[tuple[str, Any]]) -> None:
    _check_most("properties", MAX_PROPERTIES, _entries(keywords, "properties"))
    _check_most("patternProperties", MAX_PATTERN_PROPERTIES, _entries(keywords, "patternProperties"))
    _check_most("alternatives", MAX_ALTERNATIVES, _entries(keywords, "anyOf", "oneOf", "allOf"))
    lengths = [n for key, n in keywords if key in ("minLength", "maxLength") and isinstance(n, int)]
    if (longest := max(lengths, default=0)) > MAX_LENGTH:
        raise InvalidGrammar(f"A string's length is {longest}; at most {MAX_LENGTH} can be held to. Leave it out.")
    multiples = {value for key, value in keywords if key == "multipleOf" and isinstance(value, int | float)}
    if any(not math.isfinite(value) or value <= 0 for value in multiples):
        raise InvalidGrammar("multipleOf must be above 0.")
    _check_most("multiples", MAX_MULTIPLE, math.prod(Fraction(str(value)).numerator for value in multiples))
    patterns = [value for key, value in keywords if key == "pattern" and isinstance(value, str)]
    patterns += [name for key, value in keywords if key == "patternProperties" for name in _names(value)]
    for pattern in patterns:
        check_size("A pattern", pattern, MAX_REGEX_CHARACTERS)


def _entries(keywords: list[tuple[str, Any]], *names: str) -> int:
    return sum(len(value) for key, value in keywords if key in names and isinstance(value, Mapping | list))


def _names(value: object) -> list[str]:
    return list(value) if isinstance(value, Mapping) else []


def _check_most(what: str, most: int, count: int) -> None:
    if count > most:
        raise InvalidGrammar(f"The JSON schema has {count} {what}; at most {most} are taken.")
