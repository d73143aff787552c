"""`tools` and `tool_choice` as clients send them, checked: to `Tool` and `ToolChoice`. Pure.

Chat's shape is {"type": "function", "function": {…}}; /v1/responses, whose shape is flat, makes the same `FunctionBody`. Errors
name the field as the client spelled it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pagemill_server.api.conversation import ToolChoice
from pagemill_server.api.nesting import MAX_DEPTH, too_deep
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.errors import BadRequest
from pagemill_server.text.tools import Tool

MAX_TOOLS = 128  # as OpenAI
NAME = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_WORDS: Mapping[str, Literal["none", "auto", "required"]] = {"none": "none", "auto": "auto", "required": "required"}


class FunctionBody(Body):
    name: NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody
    cache_control: Any = None  # here prompts are cached without being asked


class _Named(Body):
    name: str


class _Choice(Body):
    type: Literal["function"]
    function: _Named


class _Allowed(Body):
    mode: Literal["auto", "required"]
    tools: list[_Choice] = Field(min_length=1, max_length=MAX_TOOLS)


class _AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class _Wrapped(Body):
    """A choice below its name, so that errors spell all of it."""

    tool_choice: _Choice


class _WrappedAllowed(Body):
    tool_choice: _AllowedChoice


def tools_of(functions: Sequence[FunctionBody], where: str) -> tuple[Tool, ...]:
    """`where` spells the parameters' field, with {} for the tool's place. Raises BadRequest."""
    field = where.split("[")[0]
    if len(functions) > MAX_TOOLS:
        raise BadRequest(f"{field} holds {len(functions)} functions; at most {MAX_TOOLS} are taken.", param=field)
    made: dict[str, Tool] = {}
    for place, function in enumerate(functions):
        if function.name in made:
            raise BadRequest(f"{field} names {function.name} twice.", param=field, code="invalid_value")
        made[function.name] = _tool(function, where.format(place))
    return tuple(made.values())


def _tool(function: FunctionBody, where: str) -> Tool:
    parameters = function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise BadRequest(
            f'{where} must be the JSON schema of an object, {{"type": "object", …}}.',
            param=where,
            code="invalid_value",
        )
    shown = function.model_dump(exclude_none=True, exclude={"strict"})  # in the order that models were trained with
    if too_deep(parameters):
        raise BadRequest(f"{where} is nested deeper than {MAX_DEPTH}.", param=where, code="invalid_value")
    schema = {"type": "object"} | parameters if parameters else {}
    return Tool(function.name, schema, bool(function.strict), {"type": "function", "function": shown})


def chosen(tools: Sequence[Tool], asked: Any, *, parallel: bool) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that are left to the model, and how free it is. `asked` is chat's `tool_choice`. Raises BadRequest."""
    if isinstance(asked, dict):
        return _chosen_object(tools, asked, parallel)
    mode = "auto" if asked is None else _WORDS.get(asked) if isinstance(asked, str) else None
    if mode is None:
        raise _refused(
            'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": …}} or '
            '{"type": "allowed_tools", "allowed_tools": {…}}.'
        )
    if mode == "required" and not tools:
        raise _refused("tool_choice is required, and there are no tools.")
    return tuple(tools), ToolChoice(mode if tools else "none", parallel=parallel)


def _chosen_object(tools: Sequence[Tool], asked: Any, parallel: bool) -> tuple[tuple[Tool, ...], ToolChoice]:
    if asked.get("type") != "allowed_tools":
        name = validated(_Wrapped, {"tool_choice": asked}).tool_choice.function.name
        return named(tools, name)
    allowed = validated(_WrappedAllowed, {"tool_choice": asked}).tool_choice.allowed_tools
    names = {known(tools, choice.function.name) for choice in allowed.tools}
    return tuple(tool for tool in tools if tool.name in names), ToolChoice(allowed.mode, parallel=parallel)


def named(tools: Sequence[Tool], name: str) -> tuple[tuple[Tool, ...], ToolChoice]:
    """One tool must be called, once; the model is shown the others too."""
    return tuple(tools), ToolChoice("named", known(tools, name), parallel=False)


def known(tools: Sequence[Tool], name: str, param: str = "tool_choice") -> str:
    """The name, if there is such a tool. Raises BadRequest."""
    if name not in {tool.name for tool in tools}:
        raise _refused(f"{param} names {name[:100]}, which is none of the tools.", param)
    return name


def _refused(message: str, param: str = "tool_choice") -> BadRequest:
    return BadRequest(message, param=param, code="invalid_value")
