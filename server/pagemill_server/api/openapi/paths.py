"""Every route of the serving port as OpenAPI says it: what it takes, and what it answers with which status. Pure.

A test holds this list against the app's own routes. Used by `document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagemill import endpoints
from pagemill_server.api.openapi.bodies import Schema, ref

PATH = "/openapi.json"
JSON = "application/json"
EVENTS = "text/event-stream"

_FAILURES: Mapping[int, str] = {
    400: "Something in the request is wrong; `param` names it.",
    401: "There are keys, and the request has none of them.",
    404: "No such model, or no such route.",
    405: "Another method is meant; `Allow` says which.",
    408: "The body stopped coming.",
    413: "The body is too large.",
    429: "As much waits as may, or the key's limit is reached; `Retry-After` says when to come again.",
    500: "The engine could not finish the request.",
    503: "Loading, draining or stopping; `Retry-After` says when to come again.",
}
_OF_THE_DOOR = (401, 405)  # that any route answers but the open ones
_OF_A_BODY = (400, 401, 404, 405, 408, 413, 429, 500, 503)
_HEADERS: Mapping[str, Schema] = {
    "retry-after": {"description": "Seconds.", "required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "allow": {"description": "The methods that there are.", "schema": {"type": "string"}},
    "x-request-id": {
        "description": "The request's own, or one that the server made; it stands in the access log.",
        "required": True,
        "schema": {"type": "string"},
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    tag: str
    answer: str  # the schema's name; "": plain text; "-": never a success
    body: tuple[str, ...] = ()  # the schemas' names, any of which it may be
    events: str = ""  # what a stream of it is, in words
    failures: tuple[int, ...] = _OF_THE_DOOR
    open: bool = False  # needs no key
    unready: bool = False  # 503 with the same schema


_CHAT_EVENTS = (
    "With `stream`: server-sent events. Each `data:` is a ChatCompletionChunk, or an Error where the answer can't go on; the "
    "last is `[DONE]`."
)
_COMPLETION_EVENTS = (
    "With `stream`: server-sent events. Each `data:` is a Completion, or an Error; the last is `[DONE]`."
)
_RESPONSE_EVENTS = (
    "With `stream`: server-sent events. Each `data:` is a ResponseEvent; the last is `response.completed`, "
    "`response.incomplete` or `response.failed`."
)

_STORE = "What a server that stores no responses says of one: always 404."
_NEVER = (401, 404, 405)


def _made(path: str, summary: str, answer: str, body: tuple[str, ...], events: str = "") -> Operation:
    return Operation("post", path, summary, "model", answer, body, events, failures=_OF_A_BODY)


def _probe(path: str, summary: str, answer: str, *, unready: bool = False) -> Operation:
    return Operation("get", path, summary, "server", answer, failures=(405,), open=True, unready=unready)


OPERATIONS = (
    _made("/v1/chat/completions", "The next turn of a conversation.", "ChatCompletion", ("ChatBody",), _CHAT_EVENTS),
    _made("/v1/completions", "How a text goes on.", "Completion", ("CompletionBody",), _COMPLETION_EVENTS),
    _made("/v1/responses", "The next items of a conversation.", "Response", ("ResponseBody",), _RESPONSE_EVENTS),
    _made("/v1/embeddings", "A vector of each text.", "Embeddings", ("EmbeddingBody",)),
    _made("/tokenize", "A prompt's or a conversation's tokens.", "Tokens", ("PromptBody", "ConversationBody")),
    _made("/detokenize", "The text of tokens.", "Text", ("DetokenizeBody",)),
    Operation("get", "/v1/responses/{id}", _STORE, "model", "-", failures=_NEVER),
    Operation("delete", "/v1/responses/{id}", _STORE, "model", "-", failures=_NEVER),
    Operation("post", "/v1/responses/{id}/cancel", _STORE, "model", "-", failures=_NEVER),
    Operation("get", "/v1/responses/{id}/input_items", _STORE, "model", "-", failures=_NEVER),
    Operation("get", "/v1/models", "The names of the served model.", "model", "Models"),
    Operation("get", "/v1/models/{name}", "One of them.", "model", "Model", failures=(401, 404, 405)),
    Operation("get", "/tokenizer_info", "What the tokenizer is.", "model", "TokenizerInfo", failures=(401, 405, 503)),
    Operation("get", PATH, "This document.", "server", "Document"),
    _probe(
        endpoints.HEALTH_PATH, "Whether the process is well: for liveness and startup probes.", "Health", unready=True
    ),
    _probe(endpoints.READY_PATH, "Whether requests are taken: for readiness probes.", "Readiness", unready=True),
    _probe(endpoints.METRICS_PATH, "Metrics, as Prometheus reads them.", ""),
    _probe(endpoints.VERSION_PATH, "The server's version.", "Version"),
)


def paths() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for operation in OPERATIONS:
        made.setdefault(operation.path, {})[operation.method] = _spelled(operation)
    return made


def headers() -> dict[str, Any]:
    return dict(_HEADERS)


def _spelled(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _answers(operation),
    }
    if operation.open:
        made["security"] = []
    if operation.body:
        schemas = [ref(name) for name in operation.body]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    if names := [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]:
        string = {"type": "string", "minLength": 1}
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": string} for name in names]
    return made


def _name(operation: Operation) -> str:
    words = operation.path.replace("/", "_").replace(".", "_").replace("{", "").replace("}", "")
    return operation.method + words


def _answers(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if operation.answer != "-":
        made["200"] = _answer("What was asked for." + f" {operation.events}".rstrip(), _content(operation))
    for status in operation.failures:
        made[str(status)] = _answer(_FAILURES[status], {JSON: {"schema": ref("Error")}}, status)
    if operation.unready:
        made["503"] = _answer("Not so.", _content(operation))
    return made


def _content(operation: Operation) -> dict[str, Any]:
    if not operation.answer:
        return {"text/plain": {"schema": {"type": "string"}}}
    content: dict[str, Any] = {JSON: {"schema": ref(operation.answer)}}
    return content | ({EVENTS: {"schema": {"type": "string"}}} if operation.events else {})


def _answer(description: str, content: dict[str, Any], status: int = 200) -> dict[str, Any]:
    names = ["x-request-id", *(["retry-after"] if status in (429, 503) else []), *(["allow"] if status == 405 else [])]
    return {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": content,
    }
