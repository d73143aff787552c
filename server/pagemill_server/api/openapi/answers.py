"""The schemas of what the server answers. Written by hand, for answers are made by code; the tests hold real answers to them.

A client must bear more keys than are named here. Used by `document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill import endpoints
from pagemill_server.api.openapi.bodies import Schema, ref

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
ANYTHING: Schema = {}


def const(value: str) -> Schema:
    return {"const": value}


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def maybe(schema: Schema) -> Schema:
    """It is there, and may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def by_name(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def each(_others: Mapping[str, Schema] | None = None, /, **always: Schema) -> Schema:
    """An object whose keys are all there but `_others`."""
    return {"type": "object", "properties": {**always, **(_others or {})}, "required": list(always)}


_REASON = {"enum": ["stop", "length", "tool_calls", "function_call"]}
_LIKELY = {"token": STRING, "logprob": NUMBER, "bytes": many(INTEGER)}
_CALLED = each(name=STRING, arguments=STRING)
_PROMPT_LOGPROBS = many(maybe(by_name(each(logprob=maybe(NUMBER), rank=maybe(INTEGER), decoded_token=STRING))))


def _completion(name: str, choice: Schema, others: Mapping[str, Schema]) -> Schema:
    return each(others, id=STRING, object=const(name), created=INTEGER, model=STRING, choices=many(choice))


def _generated() -> dict[str, Schema]:
    message = each(
        {"tool_calls": many(ref("ToolCallMade")), "function_call": _CALLED, "reasoning": maybe(STRING)},
        role=const("assistant"),
        content=maybe(STRING),
        refusal=maybe(STRING),
    )
    delta_call = each({"id": STRING, "type": const("function")}, index=INTEGER, function=by_name(STRING))
    delta = each(
        {
            "role": const("assistant"),
            "content": STRING,
            "reasoning": STRING,
            "tool_calls": many(delta_call),
            "function_call": by_name(STRING),
        }
    )
    chat_logprobs = maybe(each(content=many(ref("TokenLogprob")), refusal=maybe(STRING)))
    text_logprobs = maybe(
        each(
            tokens=many(STRING),
            token_logprobs=many(maybe(NUMBER)),
            top_logprobs=many(maybe(by_name(maybe(NUMBER)))),
            text_offset=many(INTEGER),
        )
    )
    of_choice = {"index": INTEGER, "finish_reason": maybe(_REASON)}
    text = each({"prompt_logprobs": _PROMPT_LOGPROBS}, **of_choice, text=STRING, logprobs=text_logprobs)
    usage = {"usage": maybe(ref("Usage"))}
    return {
        "Usage": each(
            {"completion_tokens_details": each(reasoning_tokens=INTEGER)},
            prompt_tokens=INTEGER,
            completion_tokens=INTEGER,
            total_tokens=INTEGER,
            prompt_tokens_details=each(cached_tokens=INTEGER),
        ),
        "TokenLogprob": each(**_LIKELY, top_logprobs=many(each(**_LIKELY))),
        "ToolCallMade": each(id=STRING, type=const("function"), function=_CALLED),
        "ChatCompletion": _completion(
            "chat.completion",
            each(**of_choice, message=message, logprobs=chat_logprobs),
            {"usage": ref("Usage"), "prompt_logprobs": _PROMPT_LOGPROBS},
        ),
        "ChatCompletionChunk": _completion(
            "chat.completion.chunk", each(**of_choice, delta=delta, logprobs=chat_logprobs), usage
        ),
        "Completion": _completion("text_completion", text, usage),
    }


def _responses() -> dict[str, Schema]:
    item = {"id": STRING, "status": {"enum": ["in_progress", "completed", "incomplete"]}}
    part = each(type=const("output_text"), text=STRING, annotations=many(ANYTHING), logprobs=many(ref("TokenLogprob")))
    thought = each(type=const("reasoning_text"), text=STRING)
    items = [
        each(**item, type=const("message"), role=const("assistant"), content=many(part)),
        each(**item, type=const("reasoning"), summary=many(ANYTHING), content=many(thought)),
        each(**item, type=const("function_call"), call_id=STRING, name=STRING, arguments=STRING),
    ]
    usage = each(
        input_tokens=INTEGER,
        input_tokens_details=each(cached_tokens=INTEGER, cache_write_tokens=INTEGER),
        output_tokens=INTEGER,
        output_tokens_details=each(reasoning_tokens=INTEGER),
        total_tokens=INTEGER,
    )
    response = each(
        id=STRING,
        object=const("response"),
        created_at=INTEGER,
        completed_at=maybe(INTEGER),
        status={"enum": ["in_progress", "completed", "incomplete", "failed"]},
        error=maybe(each(code=STRING, message=STRING)),
        incomplete_details=maybe(each(reason=STRING)),
        model=STRING,
        output=many({"anyOf": items}),
        usage=maybe(usage),
        instructions=maybe(STRING),
        metadata=by_name(STRING),
        parallel_tool_calls=BOOLEAN,
        store={"const": False},
        temperature=NUMBER,
        text=each(format=each(type=STRING)),
        tool_choice=ANYTHING,
        tools=many(each(type=const("function"), name=STRING)),
        top_p=NUMBER,
    )
    event = each({"response": ref("Response")}, type=STRING, sequence_number=INTEGER)
    return {"Response": response, "ResponseEvent": event}


def _others() -> dict[str, Schema]:
    card = each(
        id=STRING,
        object=const("model"),
        created=INTEGER,
        owned_by=STRING,
        root=STRING,
        parent={"type": "null"},
        max_model_len=maybe(INTEGER),
    )
    error = each(message=STRING, type=STRING, param=maybe(STRING), code=maybe(STRING))
    vector = each(
        object=const("embedding"),
        index=INTEGER,
        embedding={"anyOf": [many(NUMBER), {"type": "string", "contentEncoding": "base64"}]},
    )
    ready = each(
        ready=BOOLEAN,
        phase={"enum": list(endpoints.PHASES)},
        percent=INTEGER,
        bytesLoaded=INTEGER,
        bytesTotal=INTEGER,
        capacity=maybe({"type": "object"}),
        settings=maybe(STRING),
    )
    return {
        "Error": each(error=error),
        "Embeddings": each(
            object=const("list"),
            data=many(vector),
            model=STRING,
            usage=each(prompt_tokens=INTEGER, total_tokens=INTEGER),
        ),
        "Tokens": each(
            count=INTEGER, max_model_len=INTEGER, tokens=many(INTEGER), token_strs=maybe(many(maybe(STRING)))
        ),
        "Text": each(prompt=STRING),
        "TokenizerInfo": each(
            tokenizer_class=STRING, bos_token=maybe(STRING), eos_token=maybe(STRING), chat_template=maybe(STRING)
        ),
        "Model": card,
        "Models": each(object=const("list"), data=many(ref("Model"))),
        "Health": each(status=STRING),
        "Readiness": ready,
        "Version": each(version=STRING),
        "Document": each(openapi=STRING, info={"type": "object"}, paths={"type": "object"}),
    }


def answer_schemas() -> dict[str, Any]:
    """By name, each as a component of the document."""
    return _generated() | _responses() | _others()
