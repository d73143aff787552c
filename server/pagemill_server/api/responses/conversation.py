"""A response's body as the `Conversation` that it means. Raises BadRequest that names the field as /v1/responses spells it."""

from __future__ import annotations

from pagemill_server.api.conversation import Conversation
from pagemill_server.api.effort import template_kwargs
from pagemill_server.api.responses.body import Format, ResponseBody, tools_and_choice
from pagemill_server.api.responses.turns import messages_of
from pagemill_server.api.service import Loaded
from pagemill_server.api.structured import Output, OutputFields, output_of
from pagemill_server.errors import BadRequest
from pagemill_server.text import grammar
from pagemill_server.text.grammar import InvalidGrammar


def conversation_of(loaded: Loaded, body: ResponseBody) -> Conversation:
    generator = loaded.generating()
    tools, choice = tools_and_choice(body)
    output = _output(body)
    return Conversation(
        messages_of(body.input, body.instructions),
        where="input",
        tools=tools,
        tool_choice=choice,
        output=None if output is None else output.grammar,
        output_where="" if output is None else output.where,
        template_kwargs=template_kwargs(
            generator.template.variables if generator.template is not None else (),
            thinks=generator.reasoning is not None,
            given=body.chat_template_kwargs,
            effort=body.reasoning.effort if body.reasoning is not None else None,
            effort_where="reasoning.effort",
        ),
    )


def _output(body: ResponseBody) -> Output | None:
    """`text.format`, or vLLM's `structured_outputs`."""
    other = output_of(OutputFields(structured_outputs=body.structured_outputs))
    made = _formatted(body.format)
    if made is not None and other is not None:
        raise BadRequest(
            f"{made.where} and {other.where} exclude each other; send one of them.",
            param=made.where,
            code="invalid_value",
        )
    return made or other


def _formatted(form: Format) -> Output | None:
    if form.type == "text":
        return None
    if form.type == "json_object":
        return Output(grammar.json_object(), "text.format")
    if form.name is None or form.schema_ is None:
        name = "text.format." + ("name" if form.name is None else "schema")
        raise BadRequest(f"Missing required parameter: {name}.", param=name, code="missing_required_parameter")
    where = "text.format.schema"
    try:
        return Output(grammar.json_schema(form.schema_), where)
    except InvalidGrammar as refused:
        raise BadRequest(f"{where} can't be enforced: {refused}", param=where, code="invalid_grammar") from None
