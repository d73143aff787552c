"""What schemathesis can't guess: the name of a model that is served (in SERVED_NAME), and that arguments are JSON.

A value of another type is left as it is, for then it is the one that must be refused.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

KNOWN = {"model": os.environ["SERVED_NAME"], "arguments": "{}"}


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict):
        return {name: _known(name, map_body(context, value)) for name, value in body.items()}
    return [map_body(context, value) for value in body] if isinstance(body, list) else body


def _known(name: str, value: Any) -> Any:
    return KNOWN[name] if name in KNOWN and isinstance(value, str) else value
