"""POST /tokenize and /detokenize, in vLLM's shapes: what a prompt or a conversation is in tokens, and back.

A conversation is the body of /v1/chat/completions, and becomes the very prompt that it would be there. Needs the tokenizer and no
engine, so nothing is queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from pagemill_server.api.body import parse_object
from pagemill_server.api.chat_conversation import conversation_of
from pagemill_server.api.conversation import turn_of
from pagemill_server.api.endpoint import Call, Endpoint
from pagemill_server.api.protocol import parse_chat
from pagemill_server.api.service import Loaded
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.api.tokens import text_of, token_ids
from pagemill_server.engine.token_ids import unknown_id
from pagemill_server.errors import BadRequest


class PromptBody(Body):
    """None: not sent, or null."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None  # true where it isn't said
    return_token_strs: bool | None = None


class _StringsBody(Body):
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


class Tokenize(Endpoint):
    queues = False

    async def answer(self, loaded: Loaded, call: Call) -> None:
        body = await self.service.in_text_thread(lambda: self._made(loaded, parse_object(call.body)))
        await call.respond(body)

    def _made(self, loaded: Loaded, raw: Mapping[str, Any]) -> bytes:
        ids, strings = self._conversation(loaded, raw) if "messages" in raw else self._prompt(loaded, raw)
        backend = loaded.tokenizer.backend
        made = {
            "count": len(ids),
            "max_model_len": loaded.context,
            "tokens": ids,
            "token_strs": [backend.id_to_token(token) for token in ids] if strings else None,
        }
        return orjson.dumps(made)

    def _prompt(self, loaded: Loaded, raw: Mapping[str, Any]) -> tuple[list[int], bool]:
        body = validated(PromptBody, raw)
        self.service.name_of(body.model)
        special = body.add_special_tokens is not False
        return token_ids(loaded, body.prompt, special, "prompt"), bool(body.return_token_strs)

    def _conversation(self, loaded: Loaded, raw: Mapping[str, Any]) -> tuple[list[int], bool]:
        if "prompt" in raw:
            raise BadRequest("prompt and messages exclude each other; send one of them.", param="messages")
        strings = validated(_StringsBody, {key: raw[key] for key in raw.keys() & _StringsBody.model_fields})
        asked = {key: value for key, value in raw.items() if key not in _StringsBody.model_fields and value is not None}
        body = parse_chat({"model": self.service.served_names[0]} | asked)
        self.service.name_of(body.model)
        return list(turn_of(loaded, conversation_of(loaded, body)).prompt), bool(strings.return_token_strs)


class Detokenize(Endpoint):
    queues = False

    async def answer(self, loaded: Loaded, call: Call) -> None:
        body = await self.service.in_text_thread(lambda: self._made(loaded, parse_object(call.body)))
        await call.respond(body)

    def _made(self, loaded: Loaded, raw: Mapping[str, Any]) -> bytes:
        body, size = validated(DetokenizeBody, raw), loaded.limits.vocab_size
        self.service.name_of(body.model)
        if (wrong := unknown_id(body.tokens, size)) is not None:
            raise BadRequest(f"Token id {wrong} is not in the model's vocabulary of {size}.", param="tokens")
        return orjson.dumps({"prompt": text_of(loaded, body.tokens, "tokens")})
