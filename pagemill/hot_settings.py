"""The settings of a deployment that a running engine takes over: their names, and a digest by which both sides see that they agree.

The operator writes them into a file that the server reads at its start (`--settings-file`), sends them by PATCH /config when they
change, and knows from the digest on /ready whether a replica has them. Named as `/config` names them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NAMES = ("policy", "aging_seconds", "ttft_ms", "weights", "max_num_queued_reqs", "max_num_queued_tokens")


def digest(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of what `config` holds under `NAMES`; a whole number is the same as int and as float."""
    values = {name: _plain(config[name]) for name in NAMES}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
