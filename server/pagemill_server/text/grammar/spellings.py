"""An open object's other keys, spelled in one way. Pure.

llguidance compares keys as they are written: where keys are open, `{"\\u0061": "x"}` would pass for another key than `a`, and
whoever reads the JSON would find an `a` that its schema doesn't accept. Keys that match a pattern it writes in one way only; so
all others become keys of a pattern that matches anything. Used by `schemas`, which has bounded the depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ANYTHING = "(?s:.*)"
_ONE = (
    "",
    "items",
    "additionalItems",
    "additionalProperties",
)  # keywords whose value is a schema, or no keyword but a schema's place
_LISTS = ("prefixItems", "items", "allOf", "anyOf", "oneOf")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
# With these beside it llguidance can't have the pattern.
_COUNTED = ("patternProperties", "minProperties", "maxProperties")


def with_one_spelling(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema. One that is open with a schema of its own is left as it is."""
    made = {key: _inner(key, value) for key, value in schema.items()}
    is_open = schema.get("additionalProperties", True) in (True, {})
    if is_open and schema.get("properties") and not any(key in schema for key in _COUNTED):
        made |= {"patternProperties": {_ANYTHING: True}, "additionalProperties": False}
    return made


def _inner(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and key in _NAMED:
        return {name: _inner("", part) for name, part in value.items()}
    if isinstance(value, list) and key in _LISTS:
        return [_inner("", part) for part in value]
    return with_one_spelling(value) if isinstance(value, Mapping) and key in _ONE else value
