"""The body of POST /v1/responses, checked: https://platform.openai.com/docs/api-reference/responses/create.

`parse_response` raises BadRequest that names the field. Sampling and scheduling are chat's own fields; `turns` reads `input`. What
would need a store is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pagemill_server.api import neutral
from pagemill_server.api.conversation import ToolChoice
from pagemill_server.api.effort import Effort
from pagemill_server.api.protocol import SamplingFields, StreamOptions
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.api.structured import StructuredOutputs
from pagemill_server.api.tool_fields import FunctionBody, known, named, tools_of
from pagemill_server.errors import BadRequest
from pagemill_server.text.tools import Tool

LOGPROBS = "message.output_text.logprobs"
_STORED = ("previous_response_id", "conversation", "prompt")
NEUTRAL: neutral.Table = neutral.VLLM | {
    **dict.fromkeys(_STORED, ()),
    "background": (False,),
    "max_tokens": (),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": (),
    "max_tool_calls": (),
    "truncation": ("disabled",),
    "context_management": ([],),
    "prompt_cache_options": ({"mode": "implicit"},),
    "moderation": (),
    "access_programs": (),
    "background_options": (),
    "image": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "chat_template": (),
    "previous_input_messages": (),
    "enable_response_messages": (False,),
}
TOOL: neutral.Table = {
    "async": (False,),
    "defer_loading": (False,),
    "allowed_callers": (["direct"],),
    "output_schema": (),
}


class FunctionToolBody(FunctionBody):
    type: Literal["function"]


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextBody(Body):
    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningBody(Body):
    """Reasoning comes whole, as the content of its item: a summary is nothing that could be asked for."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None  # its older name
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(StreamOptions):
    include_usage: None = None  # chat's: here usage always comes
    continuous_usage_stats: None = None


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ResponseBody(SamplingFields):
    model: str
    input: Any  # read by `items`: pydantic's unions are vague on what is wrong
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[FunctionToolBody] | None = None
    tool_choice: Any = None  # read by `tools_and_choice`
    parallel_tool_calls: bool | None = None
    text: TextBody | None = None
    structured_outputs: StructuredOutputs | None = None  # vLLM's, beyond what `text` can say
    reasoning: ReasoningBody | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: int | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None

    @property
    def format(self) -> Format:
        return (self.text and self.text.format) or Format.model_validate({"type": "text"})

    @property
    def logprobs(self) -> int | None:
        """How many likeliest beside each token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None


def parse_response(raw: Mapping[str, Any]) -> ResponseBody:
    """Raises BadRequest."""
    _check_stateless(raw)
    left = neutral.without_neutral(raw, NEUTRAL)
    if isinstance(tools := left.get("tools"), list):
        left["tools"] = [_tool(place, tool) for place, tool in enumerate(tools)]
    body = validated(ResponseBody, left)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    if body.top_logprobs and body.logprobs is None:
        raise BadRequest(f'top_logprobs needs include to hold "{LOGPROBS}".', param="top_logprobs")
    return body


def _check_stateless(raw: Mapping[str, Any]) -> None:
    for name in _STORED:
        if raw.get(name) is not None:
            raise _unsupported(name, "this server keeps no responses: send all that the model shall know in input")
    if raw.get("background") not in (None, False):
        raise _unsupported("background", "this server keeps no responses that could be asked for later")


def _tool(place: int, tool: Any) -> Any:
    where = f"tools[{place}]"
    if not isinstance(tool, dict):
        return tool
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        raise _unsupported(
            f"{where}.type", f"a tool of type {kind[:100]!r} would have to run in the server; send functions"
        )
    return neutral.without_neutral(tool, TOOL, f"{where}.")


def _unsupported(param: str, why: str) -> BadRequest:
    return BadRequest(f"{param} is not supported: {why}.", param=param, code="unsupported_parameter")


class _Function(Body):
    type: Literal["function"]
    name: str


class _Allowed(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Function], Field(min_length=1)]


def tools_and_choice(body: ResponseBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model is shown, and how free it is. Raises BadRequest."""
    functions = [FunctionBody(**tool.model_dump(exclude={"type"})) for tool in body.tools or ()]
    tools = tools_of(functions, "tools[{}].parameters")
    parallel = body.parallel_tool_calls is not False
    match body.tool_choice:
        case None:
            return tools, ToolChoice("auto" if tools else "none", parallel=parallel)
        case ("none" | "auto" | "required") as mode:
            if mode == "required" and not tools:
                raise _no_choice("tool_choice is required, and there are no tools.")
            return tools, ToolChoice(mode if tools else "none", parallel=parallel)
        case {"type": "function", **_more}:
            return named(tools, validated(_Function, body.tool_choice, "tool_choice.").name)
        case {"type": "allowed_tools", **_more}:
            allowed = validated(_Allowed, body.tool_choice, "tool_choice.")
            return _allowed(tools, [known(tools, function.name) for function in allowed.tools], allowed.mode, parallel)
    raise _no_choice(
        'tool_choice must be "none", "auto", "required", {"type": "function", "name": …} or '
        '{"type": "allowed_tools", "mode": …, "tools": […]}.'
    )


def _allowed(
    tools: Sequence[Tool], names: Sequence[str], mode: Literal["auto", "required"], parallel: bool
) -> tuple[tuple[Tool, ...], ToolChoice]:
    return tuple(tool for tool in tools if tool.name in names), ToolChoice(mode, parallel=parallel)


def _no_choice(message: str) -> BadRequest:
    return BadRequest(message, param="tool_choice", code="invalid_value")
