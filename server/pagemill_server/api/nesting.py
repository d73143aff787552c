"""How deep a client's JSON may be nested where it is written out again, which takes a stack frame a level. Pure."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 100


def too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Whether there are more than `most` objects and lists within each other."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(too_deep(part, most - 1) for part in inner)
