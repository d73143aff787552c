"""What every body that a client sends is made of: strict types, no unknown keys, and one clear error that names the field.

"1" is no number and true is no integer. Used by the bodies of all endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pagemill_server.errors import BadRequest


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


B = TypeVar("B", bound=Body)


def validated(kind: type[B], body: Mapping[str, Any], where: str = "") -> B:
    """Raises BadRequest for the first thing that is wrong; `where` is the path to a body within the request, "input[2]."."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = where + _spell(first["loc"])
        if first["type"] == "extra_forbidden":
            raise BadRequest(f"Unknown parameter: {param}.", param=param, code="unknown_parameter") from None
        if first["type"] == "missing":
            raise BadRequest(
                f"Missing required parameter: {param}.", param=param, code="missing_required_parameter"
            ) from None
        raise BadRequest(f"Invalid value for {param}: {first['msg']}.", param=param, code="invalid_value") from None


def _spell(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as messages[0].role, a client's own key cut to a readable length."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + part[:100]
    return text
