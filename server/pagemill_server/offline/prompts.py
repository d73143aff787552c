"""What users hand to `LLM`, as token ids. What can't be a prompt is a ValueError that says which one it is and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagemill.embedding_config import EmbeddingConfig
from pagemill_server.api.protocol import parse_chat
from pagemill_server.errors import BadRequest
from pagemill_server.text.template import ChatTemplate, TemplateRefused
from pagemill_server.text.tokenizer import ModelTokenizer

Prompt = str | Sequence[int]  # text, or token ids
Message = Mapping[str, Any]  # {"role": …, "content": …}


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many."""
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts must be text, token ids, or a list of these, not {str(prompts)[:50]}")
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or many."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(
            'messages must be a conversation, a list of {"role": …, "content": …}, or a list of conversations, '
            f"not {str(messages)[:50]!r}"
        )
    if messages and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def encode(tokenizer: ModelTokenizer, prompt: Prompt, place: int, add_special: bool = True) -> tuple[int, ...]:
    """The token ids of one prompt."""
    if isinstance(prompt, str):
        ids: Sequence[int] = tokenizer.encode(_checked(prompt, place), add_special)
    else:
        ids = _ids(prompt, place)
    if not ids:
        raise ValueError(f"prompt {place} has no tokens; a prompt has at least one")
    return tuple(ids)


def encode_for_embedding(
    tokenizer: ModelTokenizer, config: EmbeddingConfig, prompt: Prompt, place: int, keep: int | None
) -> tuple[int, ...]:
    """The token ids of one text, prepared as the model's files say; the first `keep` of them where it is longer."""
    if isinstance(prompt, str):
        prompt = config.prepared(prompt)
        if keep is not None:
            return tokenizer.encode_truncated(_checked(prompt, place), keep)
    return encode(tokenizer, prompt, place)[:keep]


def render(template: ChatTemplate | None, messages: Sequence[Message], place: int) -> str:
    """A conversation as text, the assistant's turn opened."""
    if template is None:
        raise ValueError("the model has no chat template: use generate with a prompt of your own")
    try:
        body = parse_chat({"model": "", "messages": [_message(message) for message in messages]})
        return template.render([message.for_template() for message in body.messages])
    except (BadRequest, TemplateRefused, TypeError) as refusal:
        raise ValueError(f"conversation {place}: {refusal}") from None


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f'a message must be a dict of "role" and "content", not {str(message)[:50]!r}')
    return dict(message)


def _ids(prompt: object, place: int) -> Sequence[int]:
    if isinstance(prompt, Sequence) and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        return prompt
    raise ValueError(f"prompt {place} must be text or token ids, not {str(prompt)[:50]!r}")


def _checked(text: str, place: int) -> str:
    """A lone surrogate is no text: it can't be encoded, and the tokenizer would say so in words of its own."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"prompt {place} is not valid Unicode: it holds half a surrogate pair") from None
    return text
