"""What can never be served, whatever else runs: asked by the engines, and by a front end whose engine is in another process."""

from __future__ import annotations

from pagemill_server.config import EngineLimits
from pagemill_server.engine.errors import EmbedsOnly, RequestTooLarge, TextTooLong, UnknownTokenId
from pagemill_server.engine.request import AddRequest
from pagemill_server.engine.token_ids import unknown_id


def check(request: AddRequest, limits: EngineLimits) -> None:
    """Raise RequestRefused; an encoder has no blocks."""
    assert request.prompt_token_ids, "a prompt has at least one token"
    if limits.num_blocks:
        _check_room(request, limits)
    else:
        _check_text(request, limits)
    if (wrong := unknown_id(request.prompt_token_ids, limits.vocab_size)) is not None:
        raise UnknownTokenId(wrong, limits.vocab_size)


def _check_room(request: AddRequest, limits: EngineLimits) -> None:
    capacity = limits.num_blocks * limits.block_size
    longest = min(limits.max_model_len, capacity)
    room = 0 if request.pooling else 1
    if len(request.prompt_token_ids) + room > longest:
        limited_by = "the context length (max_model_len)" if limits.max_model_len <= capacity else "the whole KV cache"
        raise RequestTooLarge(len(request.prompt_token_ids), longest, limited_by, room)


def _check_text(request: AddRequest, limits: EngineLimits) -> None:
    if not request.pooling:
        raise EmbedsOnly
    if len(request.prompt_token_ids) > limits.max_model_len:
        raise TextTooLong(len(request.prompt_token_ids), limits.max_model_len)
