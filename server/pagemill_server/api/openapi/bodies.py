"""The schemas of what clients send, made from the types that validate it, so that the document can't drift. Pure.

Three things are added to pydantic's own: keys that are taken with the values that ask for nothing (`api/neutral`), the bounds of
sampling (`engine/params`), and what stands behind a field that the types leave open. Used by `document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from pagemill_server.api import neutral
from pagemill_server.api.embedding_body import MAX_INPUTS, EmbeddingBody
from pagemill_server.api.messages import ONLY
from pagemill_server.api.protocol import MAX_PROMPTS, ChatBody, CompletionBody
from pagemill_server.api.responses import body as response_body
from pagemill_server.api.responses.body import ResponseBody
from pagemill_server.api.responses.items import ITEMS, NOT_NEEDED
from pagemill_server.api.strict_body import Body
from pagemill_server.api.tokenize import DetokenizeBody, PromptBody
from pagemill_server.engine.params import bounds

Schema = dict[str, Any]

REF = "#/components/schemas/"
_MODELS: tuple[type[Body], ...] = (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    ResponseBody,
    PromptBody,
    DetokenizeBody,
    *ITEMS.values(),
)
_NEUTRAL: Mapping[str, neutral.Table] = {
    "ChatBody": neutral.CHAT,
    "Message": neutral.MESSAGE,
    "CompletionBody": neutral.COMPLETIONS,
    "EmbeddingBody": neutral.EMBEDDINGS,
    "ResponseBody": response_body.NEUTRAL,
    "FunctionToolBody": response_body.TOOL,
    **{item.__name__: NOT_NEEDED for item in ITEMS.values()},
}

_SAME_BOUNDS = {"top_logprobs": "logprobs", "max_completion_tokens": "max_tokens"}
_NAME: Schema = {"type": "string"}


def ref(name: str) -> Schema:
    return {"$ref": REF + name}


def _closed(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _texts_or_ids(most: int) -> Schema:
    text: Schema = {"type": "string", "minLength": 1}
    ids: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    return {"anyOf": [text, ids, {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": most}]}


def _choice(named: Schema, allowed: Schema) -> Schema:
    return {"anyOf": [{"enum": ["none", "auto", "required", None]}, named, allowed]}


_FUNCTION: Schema = {"const": "function"}
_JSON_SCHEMA: Schema = {"type": ["object", "boolean", "string", "null"]}  # or its text; true: any JSON
_NAMED = _closed(type=_FUNCTION, function=_closed(name=_NAME))
_FLAT = _closed(type=_FUNCTION, name=_NAME)
_MODE: Schema = {"enum": ["auto", "required"]}
_ALLOWED: Schema = {"const": "allowed_tools"}


def _some(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


_OPEN: Mapping[tuple[str, str], Schema] = {  # what pydantic is told is Any, because code reads it
    ("ChatBody", "tool_choice"): _choice(
        _NAMED, _closed(type=_ALLOWED, allowed_tools=_closed(mode=_MODE, tools=_some(_NAMED)))
    ),
    ("ChatBody", "function_call"): {"anyOf": [{"enum": ["none", "auto", None]}, _closed(name=_NAME)]},
    ("ChatBody", "guided_json"): _JSON_SCHEMA,
    ("CompletionBody", "guided_json"): _JSON_SCHEMA,
    ("StructuredOutputs", "json"): _JSON_SCHEMA,
    ("CompletionBody", "prompt"): _texts_or_ids(MAX_PROMPTS),
    ("EmbeddingBody", "input"): _texts_or_ids(MAX_INPUTS),
    ("ResponseBody", "tool_choice"): _choice(_FLAT, _closed(type=_ALLOWED, mode=_MODE, tools=_some(_FLAT))),
    ("ResponseBody", "input"): {
        "anyOf": [{"type": "string", "minLength": 1}, _some({"anyOf": [ref(item.__name__) for item in ITEMS.values()]})]
    },
}


def body_schemas() -> dict[str, Schema]:
    """By name, each as a component of the document."""
    _, made = models_json_schema([(model, "validation") for model in _MODELS], ref_template=REF + "{model}")
    schemas: dict[str, Schema] = {name: _plain(schema) for name, schema in made["$defs"].items()}
    for (name, field), schema in _OPEN.items():
        schemas[name]["properties"][field] = schema
    for name in ("ChatBody", "CompletionBody", "ResponseBody"):
        for field, schema in schemas[name]["properties"].items():
            _bound(field, schema)
    for name, table in _NEUTRAL.items():
        schemas[name]["properties"] |= {key: {"enum": [*values, None]} for key, values in table.items()}
    schemas["Message"] |= _by_role()
    for name in ("ChatBody", "CompletionBody"):
        schemas[name]["properties"]["best_of"] = {"type": ["integer", "null"], "description": "n itself, or left out"}
    # A conversation is counted as it would be asked, with one word more; for which model may be left out.
    optional = {"return_token_strs": {"type": ["boolean", "null"]}, "model": {"type": ["string", "null"]}}
    counted = schemas["ChatBody"]["properties"] | optional
    schemas["ConversationBody"] = schemas["ChatBody"] | {"properties": counted, "required": ["messages"]}
    return schemas


def _by_role() -> Schema:
    """What belongs to some roles only, as `messages.check_messages` has it."""
    others = {name: {"type": "null"} for name, roles in ONLY.items() if roles == ("assistant",)}
    return {
        "if": {"properties": {"role": {"const": "assistant"}}},
        "else": {"required": ["role", "content"], "properties": {"content": {"type": ["string", "array"]}} | others},
    }


def _plain(schema: Any) -> Any:
    """Without what only a reader of our code would understand."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    return {
        key: {name: _plain(part) for name, part in value.items()} if key in ("properties", "$defs") else _plain(value)
        for key, value in made.items()
    }


def _bound(field: str, schema: Schema) -> None:
    """The lowest and highest that sampling takes."""
    if (limits := bounds(_SAME_BOUNDS.get(field, field))) is None:
        return
    for part in schema.get("anyOf", ()):
        if part.get("type") in ("integer", "number"):
            low = "exclusiveMinimum" if limits.above else "minimum"
            part |= {low: limits.low, "maximum": limits.high}
