"""What an API server would say to a status, by the CRD's own schema: a field that it does not name is pruned, so an error here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

from pagemill_operator.crd import document

_INT64 = {"minimum": -(1 << 63), "maximum": (1 << 63) - 1}
_LONGEST = 32 * 1024  # bytes of a condition's message


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(value) for name, value in schema.items()}
    if found.get("type") == "integer":
        found = {**_INT64, **found}
    return {"additionalProperties": False, **found} if found.get("type") == "object" else found


_VERSION = document()["spec"]["versions"][0]
_STATUS = jsonschema.Draft202012Validator(_closed(_VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]))


def check_status(status: Mapping[str, Any], generation: int) -> None:
    """Fails where it would be refused, pruned, or not come back as it was sent; or says something of another generation."""
    _STATUS.validate(dict(status))
    assert json.loads(json.dumps(status).encode()) == status
    json.dumps(status, ensure_ascii=False).encode()  # lone surrogates come back as something else
    assert status["observedGeneration"] == generation
    for condition in status["conditions"]:
        assert condition["observedGeneration"] == generation
        message = condition["message"]
        assert message.strip() == message != ""
        assert "\n" not in message
        assert len(message.encode()) < _LONGEST
