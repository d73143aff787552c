"""No key comes twice under two spellings, and none gets round its schema by another one."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.text.grammar import json_schema
from tests.server.text.grammar.constraining import takes

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "é/": {"type": "null"}}}
TAKEN = ['{"a": 1, "é/": null, "b": "x", "c": []}', '{"\\n\\"": 2}', '{"": {"a": "x"}}', "{}"]
REFUSED = [
    '{"\\u0061": "x"}',
    '{"a": 1, "\\u0061": "x"}',
    '{"\\u00e9/": 1}',
    '{"é\\/": 1}',
    '{"a": "x"}',
    '{"b": 1, "a": "x"}',
]


def inside(text: str, shape: str) -> str:
    return shape.replace("…", text)


@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        (OPEN, "…"),
        (OPEN | {"additionalProperties": {}}, "…"),
        ({"type": "array", "items": OPEN}, "[…]"),
        ({"type": "array", "prefixItems": [OPEN], "minItems": 1, "items": False}, "[…]"),
        ({"anyOf": [OPEN, {"type": "null"}]}, "…"),
        ({"allOf": [OPEN, {"type": "object", "properties": {"z": {"type": "array"}}}]}, "…"),
        ({"$ref": "#/$defs/x", "$defs": {"x": OPEN}}, "…"),
        ({"type": "object", "properties": {"o": OPEN}, "required": ["o"], "additionalProperties": False}, '{"o": …}'),
        ({"type": "object", "additionalProperties": OPEN}, '{"o": …}'),
    ],
)
def test_a_key_has_one_spelling(schema: dict[str, Any], shape: str) -> None:
    grammar = json_schema(schema)
    assert [text for text in TAKEN if not takes(grammar, inside(text, shape))] == []
    assert [text for text in REFUSED if takes(grammar, inside(text, shape))] == []


def test_what_is_no_schema_is_left_alone() -> None:
    value = {"properties": {"a": 1}}
    assert takes(json_schema({"const": value}), '{"properties": {"a": 1}}')
    assert takes(json_schema({"enum": [value]}), '{"properties": {"a": 1}}')
    named = {"type": "object", "properties": {"properties": {"const": 1}, "items": {"const": 2}}, "required": ["items"]}
    assert takes(json_schema(named), '{"properties": 1, "items": 2}')


def test_counted_and_closed_objects_stay_as_they_were() -> None:
    counted = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 1}
    assert takes(json_schema(counted), '{"a": 1}')
    assert not takes(json_schema(OPEN | {"additionalProperties": False}), '{"b": 1}')
