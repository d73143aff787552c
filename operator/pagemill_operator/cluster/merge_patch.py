"""The JSON merge patch (RFC 7386) that turns one object into another: only what changed, null for what goes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Empty when nothing differs. Lists are replaced whole, as the format has it; `new` may hold nulls: they remove."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif value != before:
            patch[name] = value
    return patch
