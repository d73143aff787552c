"""Log-probabilities in OpenAI's two shapes, chat's list of tokens and completions' parallel lists, and vLLM's of a prompt. Pure.

https://platform.openai.com/docs/api-reference/chat/object and …/completions/object. Values are natural logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemill_server.api.choice import ShownToken
from pagemill_server.engine.request import SampledToken
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


def completion_logprobs(vocabulary: TokenBytes, tokens: Sequence[ShownToken], count: int) -> dict[str, Any]:
    """With the `count` likeliest of each token and the token itself; null twice for one that has none, a prompt's first."""
    return {
        "tokens": [token_name(vocabulary, token.sampled.token_id) for token in tokens],
        "token_logprobs": [_finite(token.sampled.logprob) for token in tokens],
        "top_logprobs": [_likeliest(vocabulary, token.sampled, count) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def prompt_logprobs(
    vocabulary: TokenBytes, tokens: Sequence[SampledToken], count: int
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's: null for the first token, then for each the token itself and the `count` likeliest, by token id."""
    return [None, *(_by_id(vocabulary, token, count) for token in tokens)]


def _by_id(vocabulary: TokenBytes, token: SampledToken, count: int) -> dict[str, dict[str, Any]]:
    made = {str(token.token_id): _ranked(vocabulary, token.token_id, token.logprob, token.rank)}
    for rank, top in enumerate(token.top[:count], start=1):
        made.setdefault(str(top.token_id), _ranked(vocabulary, top.token_id, top.logprob, rank))
    return made


def _ranked(vocabulary: TokenBytes, token_id: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
    decoded = vocabulary.spelled(token_id).decode("utf-8", "replace")
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": decoded}


def _likeliest(vocabulary: TokenBytes, token: SampledToken, count: int) -> dict[str, float | None] | None:
    if token.logprob is None:
        return None
    top = {token_name(vocabulary, top.token_id): _finite(top.logprob) for top in token.top[:count]}
    return top | {token_name(vocabulary, token.token_id): _finite(token.logprob)}


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


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(_LOWEST, logprob)
