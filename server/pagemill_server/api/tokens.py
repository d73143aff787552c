"""A client's text as token ids, within a bound: a tokenizer needs some hundred bytes of memory for each token that it makes.

What is far too long for the model is refused by its length alone. Used by the endpoints, in the text threads.
"""

from __future__ import annotations

from pagemill_server.api.service import Loaded
from pagemill_server.errors import BadRequest

MOST_BYTES = 1 << 20  # of a text in UTF-8 that is tokenised whatever the model's context is; megabytes take seconds
MOST_IDS = 1 << 20  # that become text at once


def token_ids(loaded: Loaded, text: str, special: bool, param: str, where: str = "") -> list[int]:
    """Raises BadRequest for what can't be a prompt of this model; `where` is how the error spells what is too long."""
    size = len(text.encode())
    if size > MOST_BYTES and size > (most := _most_bytes(loaded)):
        raise BadRequest(
            f"{where or param} is {size} bytes of text, more than this model's context of {loaded.context} tokens could "
            f"hold; at most {most} are tokenised.",
            param=param,
            code="context_length_exceeded",
        )
    return loaded.tokenizer.encode(text, special)


def beginning(loaded: Loaded, text: str) -> str:
    """As much of a text, of which only the first tokens are wanted, as may be tokenised."""
    if len(text) <= MOST_BYTES // 4:
        return text
    return text.encode()[: _most_bytes(loaded)].decode(errors="ignore")


def text_of(loaded: Loaded, ids: list[int], param: str) -> str:
    """The other way. Raises BadRequest."""
    if len(ids) > MOST_IDS:
        raise BadRequest(f"{param} holds {len(ids)} ids; at most {MOST_IDS} become text at once.", param=param)
    return loaded.tokenizer.decode(ids, skip_special=False)


def _most_bytes(loaded: Loaded) -> int:
    return max(MOST_BYTES, loaded.context * loaded.tokenizer.longest_token())
