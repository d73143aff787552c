"""What schemathesis can't guess: the name of a model that is served (in SERVED_NAME), that arguments are JSON, one id for calls.

A value of another type is left as it is, for then it is the one that must be refused.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

KNOWN = {"model": os.environ["SERVED_NAME"], "arguments": "{}", "call_id": "call"}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    case.body = _sensible(case.body)


def _sensible(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(name, _sensible(inner)) for name, inner in value.items()}
    return [_sensible(inner) for inner in value] if isinstance(value, list) else value


def _known(name: str, value: Any) -> Any:
    return KNOWN[name] if name in KNOWN and isinstance(value, str) else value
