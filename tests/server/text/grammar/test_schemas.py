"""JSON schemas: keyword by keyword what is taken, that random answers validate, and that what can't be enforced is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemill_server.text.grammar import InvalidGrammar, compile, json_schema
from tests.server.text.grammar.constraining import compiler, takes, walk

CLOSED = {"additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
    "required": ["v", "next"],
} | CLOSED
WRAPPED = {"type": "array", "prefixItems": [{"$ref": "#/$defs/n"}], "minItems": 1, "items": False}
LINKED = {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "null"}, WRAPPED]}}}
PAIR = {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 2}

SCHEMAS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "string"}, ['"a"', '""', '"\\u0000"', '"é\\""'], ["a", '"a', '"\n"', "1"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abé"'], ['"a"', '"abcd"']),
    ({"type": "string", "pattern": "^[a-z]+-[0-9]$"}, ['"ab-1"'], ['"ab-12"', '"-1"']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"today"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']),
    ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "12"], ["-4", "13", "1.5", "01"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.5", "3"], ["0", "-1"]),
    ({"type": "integer", "multipleOf": 5}, ["10", "0"], ["7"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    ({"type": "null"}, ["null"], ["None"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({"enum": ["a", 1, None, {"k": [1]}]}, ['"a"', "1", "null", '{"k": [1]}'], ['"b"', "{}"]),
    ({"const": {"a": "b"}}, ['{"a": "b"}', '{"a":"b"}'], ['{"a": "c"}']),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]", "[1, 2]", "[1,2]"],
     ["[]", "[1,2,3]", '["a"]']),
    (PAIR, ["[1, 2]"], ["[1]", "[1, 2, 3]"]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]} | CLOSED,
     ['{"a": 1, "b": "x"}', '{"b": "x"}'], ['{"a": 1}', '{"b": "x", "a": 1}', '{"b": "x", "c": 1}', "{}"]),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, ["{}", '{"x": true, "y": false}'], ['{"x": 1}']),
    ({"type": "object", "patternProperties": {"^n": {"type": "integer"}}} | CLOSED, ['{"n1": 1}'], ['{"m": 1}', '{"n": "x"}']),
    ({"type": "object", "minProperties": 1, "additionalProperties": {"const": 0}}, ['{"x": 0}'], ["{}"]),
    ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}}]}, ["1", "[null]"], ['"1"']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"1"'], ["null"]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["4"], ["2", "6"]),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["y"]}}}, ['"y"'], ['"x"']),
    ({"title": "t", "description": "d", "default": 1, "type": "integer", "examples": [2]}, ["5"], ['"5"']),
    (TREE, ['{"v": 1, "next": [{"v": 2, "next": []}]}'], ['{"v": 1}', '{"v": 1, "next": [{}]}']),
    (LINKED, ["null", "[[null]]"], ["[]", "[1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "taken", "refused"), SCHEMAS)
def test_what_a_schema_takes(schema: dict[str, Any], taken: list[str], refused: list[str]) -> None:
    grammar = json_schema(schema)
    assert [text for text in taken if not takes(grammar, text)] == []
    assert [text for text in refused if takes(grammar, text)] == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("place", range(len(SCHEMAS)))
def test_random_answers_are_json_of_the_schema(place: int, seed: int) -> None:
    schema = SCHEMAS[place][0]
    ids, ended = walk(json_schema(schema), seed)
    assert not ended or valid(json.loads(bytes(ids)), schema, schema), ids


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The keywords of SCHEMAS but format and pattern, by their definitions."""
    if schema.get("$ref") == "#":
        return valid(value, root, root)
    if ref := schema.get("$ref"):
        return valid(value, root["$defs"][ref.rpartition("/")[2]], root)
    checks = [
        "type" not in schema or any(_is(value, kind) for kind in _listed(schema["type"])),
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "anyOf" not in schema or any(valid(value, part, root) for part in schema["anyOf"]),
        "oneOf" not in schema or sum(valid(value, part, root) for part in schema["oneOf"]) == 1,
        "allOf" not in schema or all(valid(value, part, root) for part in schema["allOf"]),
    ]
    if isinstance(value, str):
        checks.append(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))
    if isinstance(value, int | float) and not isinstance(value, bool):
        checks.append(schema.get("minimum", value) <= value <= schema.get("maximum", value))
        checks.append(
            value > schema.get("exclusiveMinimum", value - 1) and value % schema.get("multipleOf", 1) in (0, value % 1)
        )
    if isinstance(value, list):
        prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9))
        checks += [valid(item, part, root) for item, part in zip(value, prefix, strict=False)]
        checks += [rest is True or (rest is not False and valid(item, rest, root)) for item in value[len(prefix) :]]
    if isinstance(value, dict):
        checks += [name in value for name in schema.get("required", [])]
        checks.append(len(value) >= schema.get("minProperties", 0))
        checks += [_property(name, item, schema, root) for name, item in value.items()]
    return all(checks)


def _property(name: str, value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if name in schema.get("properties", {}):
        return valid(value, schema["properties"][name], root)
    for pattern, part in schema.get("patternProperties", {}).items():
        if name.startswith(pattern[1:]):
            return valid(value, part, root)
    rest = schema.get("additionalProperties", True)
    return rest is True or (rest is not False and valid(value, rest, root))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds = {"string": str, "integer": int, "number": (int, float), "null": type(None), "array": list, "object": dict}
    return kind in kinds and isinstance(value, kinds[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (False, "nothing matches"),
        ([1], "an object"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf"),
        ({"type": "string", "format": "credit-card"}, "format"),
        ({"type": "strin"}, "type"),
        ({"type": "object", "properties": [1]}, "properties"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "http://example.com/x"}, "example.com"),
        ({"$ref": "#/$defs/nobody"}, "nobody"),
        ({"$ref": "#"}, "No text matches"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
        ({"enum": []}, "empty"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
        ({"type": "integer", "multipleOf": 0}, "multipleOf"),
        ({"type": "integer", "multipleOf": float("inf")}, "multipleOf"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        compiler().check(compile(json_schema(schema)))
    assert says.lower() in str(refused.value).lower()


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (nested(70), "nested deeper than 64"),
        (nested(5000), "nested deeper than 64"),
        ({"enum": [f"value {number}" for number in range(20_000)]}, "characters"),
        ({"properties": {f"p{number}": {} for number in range(1001)}}, "1001 properties"),
        ({"allOf": [{"properties": {f"p{i}-{j}": {} for j in range(400)}} for i in range(3)]}, "1200 properties"),
        ({"patternProperties": {f"^a{number}$": {} for number in range(33)}}, "33 patternProperties"),
        ({"anyOf": [{"const": number} for number in range(401)]}, "401 alternatives"),
        ({"allOf": [{"type": "integer", "multipleOf": number} for number in (997, 991)]}, "multiples"),
        ({"type": "string", "pattern": "a|" * 5000}, "a pattern has"),
        ({"type": "array", "items": {"type": "string", "maxLength": 20_001}}, "length is 20001"),
    ],
)
def test_what_would_take_minutes_is_refused_before_it_is_compiled(schema: Any, says: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        json_schema(schema)
    assert says.lower() in str(refused.value).lower()


def test_properties_named_like_keywords_are_properties() -> None:
    schema = {"type": "object", "properties": {"multipleOf": {"const": 1}, "pattern": {"const": 2}}} | CLOSED
    assert takes(json_schema(schema), '{"multipleOf": 1, "pattern": 2}')
