"""`LLM`'s structured output: what a user wrote in `SamplingParams.structured_outputs` as a compiled grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.request import SamplingParams, StructuredOutputsParams
from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar, GrammarCompiler, InvalidGrammar


def with_grammar(sampling: SamplingParams, grammars: GrammarCompiler) -> SamplingParams:
    """The same with what the engine reads. Raises InvalidSampling."""
    if sampling.structured_outputs is None and not sampling.grammar:
        return sampling
    if sampling.ignore_eos:
        raise InvalidSampling("ignore_eos", "excludes structured outputs: where the form ends, nothing else can come")
    try:
        form = sampling.structured_outputs
        text = sampling.grammar if form is None else grammar.compile(_grammar(form))
        grammars.check(text)
    except InvalidGrammar as refused:
        raise InvalidSampling("structured_outputs", f"can't be enforced: {refused}") from None
    return replace(sampling, structured_outputs=None, grammar=text)


def _grammar(form: StructuredOutputsParams) -> Grammar:
    given = [(field.name, value) for field in fields(form) if (value := getattr(form, field.name)) is not None]
    if len(given) != 1:
        raise InvalidSampling("structured_outputs", f"takes exactly one of {', '.join(_MAKERS)}")
    name, value = given[0]
    kind, make = _MAKERS[name]
    if not isinstance(value, kind) or (name == "choice" and not all(isinstance(one, str) for one in value)):
        raise InvalidSampling(f"structured_outputs.{name}", f"must not be {str(value)[:50]!r}")
    return make(value)


def _schema(value: str | Mapping[str, Any]) -> Grammar:
    try:
        return grammar.json_schema(json.loads(value) if isinstance(value, str) else value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidGrammar(f"The schema is no JSON: {error}.") from None


_MAKERS: dict[str, tuple[Any, Callable[[Any], Grammar]]] = {
    "json": (str | Mapping, _schema),
    "regex": (str, grammar.regex),
    "choice": (list | tuple, grammar.choice),
    "grammar": (str, grammar.cfg),
    "json_object": (bool, lambda _: grammar.json_object()),
}
