"""What an answer's text must look like, as clients ask for it: OpenAI's `response_format`, vLLM's `structured_outputs` and its
older `guided_…` keys, as one `Grammar`. Raises BadRequest that names the field.

The fields are part of `api/protocol`'s bodies; used by `api/completions` and `api/chat_conversation`, in the text threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from pagemill_server.api.service import Loaded
from pagemill_server.api.strict_body import Body
from pagemill_server.errors import BadRequest
from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar, InvalidGrammar


class JsonSchema(Body):
    name: str
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None  # it is enforced either way
    description: str | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """One of the first five."""

    choice: list[str] | None = None
    regex: str | None = None
    json_: Any = Field(default=None, alias="json")  # a schema, an object or its JSON; true: any JSON
    json_object: Literal[True] | None = None
    grammar: str | None = None
    # vLLM's other settings, where they ask for nothing.
    disable_fallback: bool | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None


class OutputFields(Body):
    """What the bodies of both endpoints have."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_choice: list[str] | None = None
    guided_regex: str | None = None
    guided_json: Any = None
    guided_grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What was asked for, and the field that asked."""

    grammar: Grammar
    where: str


def output_of(body: OutputFields) -> Output | None:
    """None: any text."""
    asked = [*_formatted(body.response_format), *_structured(body.structured_outputs), *_guided(body)]
    if len(asked) > 1:
        names = " and ".join(one.where for one in asked)
        raise BadRequest(f"{names} exclude each other; send one of them.", param=asked[0].where, code="invalid_value")
    return asked[0].output() if asked else None


def compiled(loaded: Loaded, output: Output | None) -> str:
    """As `SamplingParams.grammar` takes it, tried out; "": any text."""
    if output is None:
        return ""
    try:
        text = grammar.compile(output.grammar)
        loaded.generating().grammars.check(text)
    except InvalidGrammar as refused:
        raise _invalid(refused, output.where) from None
    return text


@dataclass(frozen=True, slots=True)
class _Asked:
    where: str
    value: Any
    make: Callable[[Any], Grammar]

    def output(self) -> Output:
        try:
            return Output(self.make(self.value), self.where)
        except InvalidGrammar as refused:
            raise _invalid(refused, self.where) from None


def _invalid(refused: InvalidGrammar, where: str) -> BadRequest:
    """What can't be enforced is refused, never left out."""
    return BadRequest(f"{where} can't be enforced: {refused}", param=where, code="invalid_grammar")


def _formatted(form: ResponseFormat | None) -> list[_Asked]:
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [_Asked("response_format", True, _json_object)]
    if form.json_schema is None or form.json_schema.schema_ is None:
        missing = "response_format.json_schema" + (".schema" if form.json_schema is not None else "")
        raise BadRequest(f"Missing required parameter: {missing}.", param=missing, code="missing_required_parameter")
    return [_Asked("response_format.json_schema.schema", form.json_schema.schema_, _schema)]


def _structured(outputs: StructuredOutputs | None) -> list[_Asked]:
    if outputs is None:
        return []
    asked = _sent(
        _Asked("structured_outputs.choice", outputs.choice, grammar.choice),
        _Asked("structured_outputs.regex", outputs.regex, grammar.regex),
        _Asked("structured_outputs.json", outputs.json_, _schema),
        _Asked("structured_outputs.json_object", outputs.json_object, _json_object),
        _Asked("structured_outputs.grammar", outputs.grammar, grammar.cfg),
    )
    if len(asked) != 1:
        raise BadRequest(
            "structured_outputs takes exactly one of choice, regex, json, json_object and grammar.",
            param="structured_outputs",
            code="invalid_value",
        )
    return asked


def _guided(body: OutputFields) -> list[_Asked]:
    return _sent(
        _Asked("guided_choice", body.guided_choice, grammar.choice),
        _Asked("guided_regex", body.guided_regex, grammar.regex),
        _Asked("guided_json", body.guided_json, _schema),
        _Asked("guided_grammar", body.guided_grammar, grammar.cfg),
    )


def _sent(*asked: _Asked) -> list[_Asked]:
    return [one for one in asked if one.value is not None]


def _json_object(_: Any) -> Grammar:
    return grammar.json_object()


def _schema(value: Any) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidGrammar(f"It is no JSON: {error}.") from None
    if not isinstance(value, Mapping | bool):
        raise InvalidGrammar("A JSON schema is an object.")
    return grammar.json_schema(value)
