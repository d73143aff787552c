"""Log-probabilities in OpenAI's two shapes: chat's list of tokens, and completions' parallel lists. Pure.

https://platform.openai.com/docs/api-reference/chat/object and …/completions/object. Values are natural logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemill_server.api.choice import ShownToken
from pagemill_server.text.detokenizer import TokenBytes

_LOWEST = -9999.0  # what OpenAI says for a token that can't be; JSON has no minus infinity


def chat_logprobs(vocabulary: TokenBytes, tokens: Sequence[ShownToken]) -> dict[str, Any]:
    """Each token with its bytes, which joined are the text's even where a character spans tokens."""
    return {
        "content": [
            _chat_token(vocabulary, token.sampled.token_id, token.sampled.logprob)
            | {"top_logprobs": [_chat_token(vocabulary, top.token_id, top.logprob) for top in token.sampled.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(vocabulary: TokenBytes, tokens: Sequence[ShownToken]) -> dict[str, Any]:
    """`top_logprobs` holds the sampled token too, so it may have one more than was asked for."""
    return {
        "tokens": [token_name(vocabulary, token.sampled.token_id) for token in tokens],
        "token_logprobs": [_finite(token.sampled.logprob) for token in tokens],
        "top_logprobs": [
            {token_name(vocabulary, top.token_id): _finite(top.logprob) for top in token.sampled.top}
            | {token_name(vocabulary, token.sampled.token_id): _finite(token.sampled.logprob)}
            for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _chat_token(vocabulary: TokenBytes, token_id: int, logprob: float | None) -> dict[str, Any]:
    spelled = vocabulary.spelled(token_id)
    return {"token": spelled.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(spelled)}


def token_name(vocabulary: TokenBytes, token_id: int) -> str:
    """Part of a character as OpenAI writes it, so that two such tokens stay two keys."""
    spelled = vocabulary.spelled(token_id)
    try:
        return spelled.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(_LOWEST, logprob)
