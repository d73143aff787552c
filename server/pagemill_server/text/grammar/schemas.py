"""JSON schemas as the compiler gets them: within bounds, and with the layout of the JSON that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagemill_server.text.grammar.bounds import MAX_CHARACTERS, MAX_DEPTH
from pagemill_server.text.grammar.errors import InvalidGrammar

# Of all that JSON allows between its parts this can't go on for ever, and it is how models write most of theirs.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_OPTIONS = "x-guidance"  # how llguidance is told


def checked_schema(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Raises InvalidGrammar for one that is too large, or that is nothing to match."""
    if schema is False:
        raise InvalidGrammar("The schema is false, which nothing matches.")
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise InvalidGrammar("A JSON schema is an object.")
    if _OPTIONS in schema:
        raise InvalidGrammar(f"{_OPTIONS} is not supported in a JSON schema.")
    _check_depth(schema)
    if (size := len(json.dumps(schema))) > MAX_CHARACTERS:
        raise InvalidGrammar(f"The JSON schema has {size} characters; at most {MAX_CHARACTERS} are taken.")
    return dict(schema) | {_OPTIONS: LAYOUT}


def _check_depth(schema: object) -> None:
    level: list[object] = [schema]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _within(value)]
        if not level:
            return
    raise InvalidGrammar(f"The JSON schema is nested deeper than {MAX_DEPTH}.")


def _within(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, Mapping | list)]
    return [inner for inner in value if isinstance(inner, Mapping | list)] if isinstance(value, list) else []
