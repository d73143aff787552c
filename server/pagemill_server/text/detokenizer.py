"""Token ids to text, one at a time: what bytes each token stands for, and a decoder that holds back half characters.

Exact for the two families of tokenizers that the supported models have: byte-level BPE (GPT-2, Llama 3, SmolLM2) and
SentencePiece with byte fallback (Llama 2, Mistral). Special tokens have no bytes. Knows no engine; used by `api/choice`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer

from pagemill.failures import FailureReason, PagemillError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes that a token adds to the text; `of` is a list lookup after the first time."""

    def __init__(self, backend: Tokenizer, special_ids: Collection[int] = ()) -> None:
        """`special_ids` come on top of those that the tokenizer itself marks as special."""
        kinds = _decoder_kinds(backend)
        self._byte_level = "ByteLevel" in kinds
        if not self._byte_level and "ByteFallback" not in kinds:
            raise PagemillError(
                FailureReason.UNSUPPORTED_TOKENIZER,
                f"the tokenizer decodes with {' + '.join(kinds) or 'nothing'}; byte-level BPE and byte fallback are supported",
            )
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._special = {i for i, token in added.items() if token.special} | set(special_ids)
        self._cache: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """b"" for special tokens and for ids that the tokenizer doesn't have (a model's embedding may be larger)."""
        known = self._cache.get(token_id)
        if known is None:
            known = b"" if token_id in self._special else self.spelled(token_id)
            self._cache[token_id] = known
        return known

    def spelled(self, token_id: int) -> bytes:
        """The same, but a special token gives its name: what a list of log-probabilities shows."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            if all(character in _BYTE_OF for character in token):
                return bytes(_BYTE_OF[character] for character in token)
            return token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


class Detokenizer:
    """One sequence's text. The pieces joined equal the whole decoded at once; invalid bytes become U+FFFD.

    With `special` the names of special tokens are text too; so are always those of the tokens `shown`.
    """

    def __init__(self, vocabulary: TokenBytes, special: bool = False, shown: Collection[int] = ()) -> None:
        self._vocabulary, self._special, self._shown = vocabulary, special, shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._bytes_of(token_id))

    @property
    def within_character(self) -> bool:
        """Whether bytes wait for the rest of their character."""
        return bool(self._decoder.getstate()[0])

    def cuts_off(self, token_id: int) -> bool:
        """Whether the bytes that wait will stay half a character, because this token begins another."""
        begins = self._bytes_of(token_id)[:1]
        return self.within_character and bool(begins) and not 0x80 <= begins[0] < 0xC0

    def _bytes_of(self, token_id: int) -> bytes:
        named = self._special or token_id in self._shown
        return self._vocabulary.spelled(token_id) if named else self._vocabulary.of(token_id)

    def flush(self) -> str:
        """What is left when the sequence ends within a character."""
        return self._decoder.decode(b"", final=True)


def _decoder_kinds(backend: Tokenizer) -> list[str]:
    """The names of the tokenizer's decoding steps; a lone ▁-replacing decoder counts as byte fallback."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    kinds = [step["type"] for step in state.get("decoders", [state])]
    return ["ByteFallback", *kinds] if kinds == ["Metaspace"] else kinds


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters (https://github.com/openai/gpt-2, encoder.py: bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
