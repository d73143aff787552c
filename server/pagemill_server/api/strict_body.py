"""What every body that a client sends is made of: strict types, no unknown keys, and one clear error that names the field.

"1" is no number and true is no integer. A body may hold millions of mistakes, and pydantic would collect all of them, in gigabytes
and minutes: so lists end at their first, and objects have a bound. Used by the bodies of all endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pagemill_server.errors import BadRequest

_MOST_KEYS = 256  # of an object whose keys are known
_MOST_ENTRIES = 2048  # of one with any keys, whose values are checked


def _bounded(value: Any, most: int, what: str) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise PydanticCustomError("too_many", f"it has {len(value)} {what}, and at most {most} are looked at")
    return value


def _bounded_entries(value: Any) -> Any:
    return _bounded(value, _MOST_ENTRIES, "entries")


def _failing_fast(schema: Any) -> Any:
    """The same schema, where no list and no object collects mistakes."""
    if isinstance(schema, list | tuple):
        return type(schema)(_failing_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    made = {key: part if key == "metadata" else _failing_fast(part) for key, part in schema.items()}
    if made.get("type") == "list":
        return made | {"fail_fast": True}
    if made.get("type") == "dict" and made.get("values_schema", {}).get("type", "any") != "any":
        return core_schema.no_info_before_validator_function(_bounded_entries, cast("CoreSchema", made))
    return made


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _bounded_keys(cls, value: Any) -> Any:
        return _bounded(value, _MOST_KEYS, "keys")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", _failing_fast(handler(source)))


B = TypeVar("B", bound=Body)


def validated(kind: type[B], body: Mapping[str, Any], where: str = "") -> B:
    """Raises BadRequest for the first thing that is wrong; `where` is the path to a body within the request, "input[2]."."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = (where + _spell(first["loc"])) or None
        if first["type"] == "extra_forbidden":
            raise BadRequest(f"Unknown parameter: {param}.", param=param, code="unknown_parameter") from None
        if first["type"] == "missing":
            raise BadRequest(
                f"Missing required parameter: {param}.", param=param, code="missing_required_parameter"
            ) from None
        raise BadRequest(
            f"Invalid value for {param or 'the body'}: {first['msg']}.", param=param, code="invalid_value"
        ) from None


def _spell(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as messages[0].role, a client's own key cut to a readable length."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + part[:100]
    return text
