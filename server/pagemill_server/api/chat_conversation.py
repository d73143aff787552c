"""A chat's body as the `Conversation` that it means; OpenAI's older functions become tools. Raises BadRequest."""

from __future__ import annotations

from pagemill_server.api.conversation import Conversation, ToolChoice
from pagemill_server.api.effort import template_kwargs
from pagemill_server.api.messages import for_template
from pagemill_server.api.protocol import ChatBody
from pagemill_server.api.service import Loaded
from pagemill_server.api.structured import output_of
from pagemill_server.api.tool_fields import chosen, known, named, tools_of
from pagemill_server.errors import BadRequest
from pagemill_server.text.tools import Tool


def conversation_of(loaded: Loaded, body: ChatBody) -> Conversation:
    generator = loaded.generating()
    tools, choice = _tools(body) if body.function_call is None and not body.functions else _functions(body)
    continued = bool(body.continue_final_message)
    output = output_of(body)
    if continued and body.add_generation_prompt:
        raise _refused("continue_final_message", "and add_generation_prompt exclude each other")
    if continued and body.messages[-1].role != "assistant":
        raise _refused("continue_final_message", "needs the last message to be the assistant's")
    return Conversation(
        for_template(body.messages),
        tools=tools,
        tool_choice=choice,
        output=None if output is None else output.grammar,
        output_where="" if output is None else output.where,
        template_kwargs=template_kwargs(
            generator.template.variables if generator.template is not None else (),
            thinks=generator.reasoning is not None,
            given=body.chat_template_kwargs,
            effort=body.reasoning_effort,
        ),
        add_generation_prompt=not continued and body.add_generation_prompt is not False,
        continue_final_message=continued,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _tools(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools = tools_of([tool.function for tool in body.tools or ()], "tools[{}].function.parameters")
    return chosen(tools, body.tool_choice, parallel=body.parallel_tool_calls is not False)


def _functions(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    """One call at most, as they had it."""
    tools, asked = tools_of(body.functions or (), "functions[{}].parameters"), body.function_call
    if isinstance(asked, dict) and asked.keys() == {"name"} and isinstance(asked["name"], str):
        return named(tools, known(tools, asked["name"], "function_call"))
    if asked not in (None, "none", "auto"):
        raise _refused("function_call", 'must be "none", "auto" or {"name": …}')
    return tools, ToolChoice("none" if asked == "none" else "auto", parallel=False)


def _refused(field: str, trouble: str) -> BadRequest:
    return BadRequest(f"{field} {trouble}.", param=field, code="invalid_value")
