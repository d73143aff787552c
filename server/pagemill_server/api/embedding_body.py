"""The body of POST /v1/embeddings, checked at the door; from it to token ids, as the model's files say. In the text threads.

https://platform.openai.com/docs/api-reference/embeddings, and of vLLM's what `EmbeddingBody` has. Raises BadRequest that names the
field. Used by `api/embeddings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pagemill.embedding_config import EmbeddingConfig
from pagemill_server.api import neutral
from pagemill_server.api.protocol import MAX_DEADLINE_MS, MAX_SALT_CHARACTERS
from pagemill_server.api.service import Loaded
from pagemill_server.api.strict_body import Body, validated
from pagemill_server.api.tokens import beginning, token_ids
from pagemill_server.engine.token_ids import unknown_id
from pagemill_server.errors import BadRequest

MAX_INPUTS = 2048  # as OpenAI

Input = str | tuple[int, ...]


class EmbeddingBody(Body):
    """None: not sent, or null."""

    model: str | None = None
    input: Any  # checked by `inputs`: pydantic's unions are slow and vague on a hundred thousand ids
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    # vLLM's.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None  # -1: to what the model takes
    add_special_tokens: bool | None = None
    normalize: bool | None = None  # to length 1; null: as the model's files say
    use_activation: bool | None = None  # vLLM's newer word for it
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    # Ours.
    deadline_ms: Annotated[float, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None

    def inputs(self) -> list[Input]:
        """Text or token ids, one a vector. Raises BadRequest."""
        value = self.input
        if isinstance(value, str) or (isinstance(value, list) and value and _all_ids(value)):
            value = [value]
        if not isinstance(value, list) or not value:
            raise _bad_input("input must be a string, a list of token ids, or a list of these, and not empty.")
        if len(value) > MAX_INPUTS:
            raise _bad_input(f"input holds {len(value)} texts; at most {MAX_INPUTS} are taken in one request.")
        return [_input(place, item) for place, item in enumerate(value)]


def parse_embedding(raw: Mapping[str, Any]) -> EmbeddingBody:
    """Raises BadRequest."""
    body = validated(EmbeddingBody, neutral.without_neutral(raw, neutral.EMBEDDINGS))
    if {body.normalize, body.use_activation} == {True, False}:
        raise BadRequest("normalize and use_activation differ; send one of them.", param="normalize")
    return body


def normalized(config: EmbeddingConfig, body: EmbeddingBody) -> bool:
    """Whether vectors are made as long as 1."""
    asked = body.use_activation if body.normalize is None else body.normalize
    if asked is False and config.normalize:
        param = "use_activation" if body.normalize is None else "normalize"
        raise BadRequest(f"This model's vectors come normalised; leave {param} out.", param=param, code="invalid_value")
    return config.normalize if asked is None else asked


def texts_of(loaded: Loaded, config: EmbeddingConfig, body: EmbeddingBody) -> list[tuple[int, ...]]:
    """The token ids of each input, no longer than the model takes."""
    most = loaded.context
    if body.truncate_prompt_tokens == 0 or (body.truncate_prompt_tokens or 0) > most:
        raise BadRequest(
            f"truncate_prompt_tokens must be -1, or from 1 to the {most} tokens that this model takes.",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    keep = most if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
    special = body.add_special_tokens is not False
    return [
        _fitting(place, _encoded(loaded, config, place, item, keep, special=special), loaded)
        for place, item in enumerate(body.inputs())
    ]


def size_of(config: EmbeddingConfig, asked: int | None) -> int:
    """How many numbers a vector has."""
    if asked is None or asked == config.size:
        return config.size
    if not config.shorter:
        raise BadRequest(
            f"This model's vectors have {config.size} dimensions and were not trained to be cut; leave dimensions out.",
            param="dimensions",
            code="invalid_value",
        )
    if asked not in config.shorter:
        sizes = sorted({*config.shorter, config.size})
        known = ", ".join(map(str, sizes)) if len(sizes) < config.size else f"any from 1 to {config.size}"
        raise BadRequest(f"dimensions is {asked}; this model has {known}.", param="dimensions", code="invalid_value")
    return asked


def _encoded(
    loaded: Loaded, config: EmbeddingConfig, place: int, item: Input, keep: int | None, *, special: bool
) -> tuple[int, ...]:
    if not isinstance(item, str):
        return item[:keep]
    text = config.prepared(item)
    if keep is not None and special:
        return loaded.tokenizer.encode_truncated(beginning(loaded, text), keep)
    if keep is not None:
        text = beginning(loaded, text)
    return tuple(token_ids(loaded, text, special, "input", f"input[{place}]"))[:keep]


def _fitting(place: int, ids: Sequence[int], loaded: Loaded) -> tuple[int, ...]:
    if not ids:
        raise _bad_input(f"input[{place}] becomes no token at all.")
    if len(ids) > loaded.context:
        raise BadRequest(
            f"input[{place}] has {len(ids)} tokens, and this model takes at most {loaded.context}; shorten it, or send "
            "truncate_prompt_tokens: -1 to have only its beginning read.",
            param="input",
            code="context_length_exceeded",
        )
    size = loaded.limits.vocab_size
    if (wrong := unknown_id(ids, size)) is not None:
        raise _bad_input(f"input[{place}] holds token id {wrong}, which is not in the model's vocabulary of {size}.")
    return tuple(ids)


def _input(place: int, item: Any) -> Input:
    if isinstance(item, str) and item:
        return item
    if isinstance(item, list) and item and _all_ids(item):
        return tuple(item)
    if item in ("", []):
        raise _bad_input(f"input[{place}] is empty; a text has at least one character.")
    raise _bad_input("input must be a string, a list of token ids, or a list of these.")


def _all_ids(items: Sequence[Any]) -> bool:
    return all(type(item) is int for item in items)


def _bad_input(message: str) -> BadRequest:
    return BadRequest(message, param="input")
