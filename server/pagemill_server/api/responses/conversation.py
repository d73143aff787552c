"""A response's body as the `Conversation` that it means. Raises BadRequest that names the field as /v1/responses spells it."""

from __future__ import annotations

from pagemill_server.api.conversation import Conversation
from pagemill_server.api.effort import template_kwargs
from pagemill_server.api.responses.body import Format, ResponseBody, tools_and_choice
from pagemill_server.api.responses.turns import messages_of
from pagemill_server.api.service import Loaded
from pagemill_server.errors import BadRequest
from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar, InvalidGrammar


def conversation_of(loaded: Loaded, body: ResponseBody) -> Conversation:
    generator = loaded.generating()
    tools, choice = tools_and_choice(body)
    return Conversation(
        messages_of(body.input, body.instructions),
        where="input",
        tools=tools,
        tool_choice=choice,
        output=_output(body.format),
        output_where="text.format",
        template_kwargs=template_kwargs(
            generator.template.variables if generator.template is not None else (),
            thinks=generator.reasoning is not None,
            given=body.chat_template_kwargs,
            effort=body.reasoning.effort if body.reasoning is not None else None,
            effort_where="reasoning.effort",
        ),
    )


def _output(form: Format) -> Grammar | None:
    if form.type == "text":
        return None
    if form.type == "json_object":
        return grammar.json_object()
    if form.name is None or form.schema_ is None:
        name = "name" if form.name is None else "schema"
        raise BadRequest(
            f"Missing required parameter: text.format.{name}.",
            param=f"text.format.{name}",
            code="missing_required_parameter",
        )
    try:
        return grammar.json_schema(form.schema_)
    except InvalidGrammar as refused:
        raise BadRequest(str(refused), param="text.format.schema", code="invalid_grammar") from None
