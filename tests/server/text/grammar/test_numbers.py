"""Whole numbers that no double is: refused, or held within what the schema says."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.text.grammar import InvalidGrammar, json_schema
from tests.server.text.grammar.constraining import takes

ODD = 2**53 + 1  # a double of it is 2**53


@pytest.mark.parametrize(
    "schema",
    [
        {"const": ODD},
        {"const": {"id": [ODD]}},
        {"enum": [1, -ODD]},
        {"enum": [123456789012345678901234567890]},
        {"const": 10**400},
        {"type": "integer", "minimum": ODD},
        {"type": "integer", "exclusiveMinimum": 2**53},
        {"type": "integer", "exclusiveMaximum": -(2**53)},
        {"properties": {"default": {"const": ODD}}},
        {"type": "array", "items": {"type": "integer", "maximum": 2**53 + 3}},
    ],
)
def test_what_would_become_another_number_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar, match="can't be told from"):
        json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"const": 2**60}, [str(2**60)], [str(2**60 + 1)]),
        ({"type": "integer", "maximum": ODD}, [str(2**53 - 1)], [str(2**53 + 2)]),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, [str(2**63 - 1)], [str(2**63), "-1"]),
        ({"type": "integer", "maximum": 2**64 - 1}, ["1"], [str(2**64)]),
        ({"type": "integer", "default": ODD, "examples": [ODD]}, ["1"], ["1.5"]),
        ({"enum": [True, 1.0]}, ["true", "1"], []),
    ],
)
def test_what_a_double_holds_is_held(schema: dict[str, Any], taken: list[str], refused: list[str]) -> None:
    grammar = json_schema(schema)
    assert [text for text in taken if not takes(grammar, text)] == []
    assert [text for text in refused if takes(grammar, text)] == []
