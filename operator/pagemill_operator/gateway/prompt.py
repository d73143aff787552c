"""What the gateway reads of a request's body: where the prompt begins, and whether the answer is a stream. Pure; never refuses.

Two requests of one conversation begin alike whatever came since, and so do two that share a long system message. So the
beginning of a chat is all up to its first user message; of any prompt it is as much as `BLOCKS` blocks hold. Used by `proxy`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BLOCKS = 8  # of the prompt's first ones
BYTES_PER_TOKEN = 4  # of English and of code, roughly; the gateway has no tokenizer
MOST_PARSED = 1 << 20  # bytes; parsing a longer body would hold up every other stream for tens of milliseconds

_FIELDS = ("messages", "prompt", "input")


def prefix_key(body: bytes, block_size: int) -> bytes | None:
    """What `prefix` routes by; None where no prompt is found."""
    most = BLOCKS * block_size
    if len(body) > MOST_PARSED:
        return _raw(body, most * BYTES_PER_TOKEN)
    document = parsed(body)
    prompt = next((document[field] for field in _FIELDS if document.get(field)), None)
    head = str(document["instructions"]) if document.get("instructions") else ""
    return _beginning(prompt, head, most)


def wants_stream(body: bytes) -> bool:
    """Whether the answer is to be server-sent events."""
    return parsed(body).get("stream") is True


def parsed(body: bytes) -> Mapping[str, Any]:
    """Empty for whatever is no JSON object: the replica says what is wrong with it."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, Mapping) else {}


def _beginning(prompt: object, head: str, most: int) -> bytes | None:
    """`most`: tokens."""
    if isinstance(prompt, str):
        return _cut(head + "\0" + prompt if head else prompt, most)
    if not isinstance(prompt, Sequence) or not prompt:
        return None
    first = prompt[0]
    if isinstance(first, str | Sequence):  # several prompts: they go together, by the first
        return _beginning(first, head, most)
    if isinstance(first, int):
        return b"".join(b"%d," % token for token in prompt[:most] if isinstance(token, int))
    if isinstance(first, Mapping):
        return _cut(head + "".join(_until_the_user(prompt)), most)
    return None


def _until_the_user(messages: Sequence[object]) -> Iterator[str]:
    for message in messages:
        if not isinstance(message, Mapping):
            return
        yield f"\0{message.get('role')}\0{_text(message.get('content'))}"
        if message.get("role") == "user":
            return


def _text(content: object) -> str:
    """Of text, or of a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "".join(part for part in parts if isinstance(part, str))


def _cut(text: str, most: int) -> bytes:
    bytes_ = most * BYTES_PER_TOKEN
    return text[:bytes_].encode("utf-8", "surrogatepass")[:bytes_]


def _raw(body: bytes, most: int) -> bytes | None:
    """As it was written: whoever sends so much twice writes it the same way."""
    places = [place for field in _FIELDS if (place := body.find(b'"%s"' % field.encode(), 0, MOST_PARSED)) >= 0]
    return body[min(places) : min(places) + most] if places else None
