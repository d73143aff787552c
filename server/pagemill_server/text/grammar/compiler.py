"""Compiled grammars: checked in the text threads before a request is queued, copied by the engine for each of its sequences.

Made once for a model. Thread-safe; what is compiled is kept for those that come with the same grammar.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from pagemill_server.text.deep_stack import on_deep_stack
from pagemill_server.text.grammar.bounds import CFG_LIMITS, LIMITS
from pagemill_server.text.grammar.errors import InvalidGrammar
from pagemill_server.text.grammar.trial import try_out

MAX_KEPT = 16  # a hostile one takes some 50 MB
_MESSAGE_CHARACTERS = 300
# The model chooses the tokens also where only one text can come. Left to llguidance, a text that spells a special token's name
# would become that token, and the answer end in the middle where it is the end's.
_OPTIONS = '%llguidance {"no_forcing": true}'
_AFTER = re.compile(r"\n<|\n +\d+ \|")


class GrammarCompiler:
    """`vocab_size` is that of the model's embedding: masks have a bit for each of it, or for each of the tokenizer's if it has
    more."""

    def __init__(self, backend: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._backend, self._eos_ids, self.vocab_size = backend, tuple(eos_ids), vocab_size
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, text: str) -> None:
        """Compile what `grammar.compile` wrote. Raises InvalidGrammar."""
        self._prototype(text)

    def matcher(self, text: str) -> LLMatcher:
        """At its start. Raises InvalidGrammar."""
        return self._prototype(text).deep_copy()

    def forget(self, text: str) -> None:
        """Compile it anew for the next: what its copies share has reached a limit."""
        with self._lock:
            self._kept.pop(text, None)

    def _prototype(self, text: str) -> LLMatcher:
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
                return self._kept[text]
        made = self._made(text)
        with self._lock:
            self._kept[text] = made
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return made

    def _made(self, text: str) -> LLMatcher:
        try:
            return on_deep_stack(lambda: self._compile(text))
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of llguidance's Rust; no Exception by itself
                raise InvalidGrammar("The grammar's compiler gave up on it.") from error
            raise

    def _compile(self, text: str) -> LLMatcher:
        parts = [self._written(part) for part in _parts(text)]
        start = {"lark_grammar": f"{_OPTIONS}\nstart: @{parts[0]['name']}"}
        made = LLMatcher(self._tokenizer, json.dumps({"grammars": [start, *parts]}), log_level=0, limits=LIMITS)
        _check(made)
        try_out(made, self._eos_ids, _check)
        return made

    def _written(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Our own kinds of parts in Lark."""
        if "literal" in part:
            pieces = self._pieces(part["literal"])
            rule = " ".join(_spelled(piece) for piece in pieces)
            return {"name": part["name"], "lark_grammar": f"start: {rule}"}
        if "text_until" in part:
            return {"name": part["name"], "lark_grammar": self._until(part["text_until"])}
        if "cfg" in part:
            _refuse(LLMatcher.validate_grammar(part["cfg"], self._tokenizer, limits=CFG_LIMITS))
            return {"name": part["name"], "lark_grammar": part["cfg"]}
        return dict(part)

    def _until(self, marker: str) -> str:
        plain = f"start[lazy]: /(?s:.*)/ {json.dumps(marker)}"
        pieces = self._pieces(marker)
        if all(isinstance(piece, str) for piece in pieces):
            return plain
        special = " ".join(_spelled(piece) for piece in pieces)
        return f"start: special | plain\nspecial: /(?s:.*)/ {special}\n{plain.replace('start', 'plain', 1)}"

    def _pieces(self, text: str) -> list[str | int]:
        """The text with the ids of special tokens in place of their names."""
        pieces: list[str | int] = []
        ids = self._backend.encode(text, add_special_tokens=False)
        written = 0
        for token_id, (begin, end) in zip(ids.ids, ids.offsets, strict=True):
            if self._tokenizer.is_special_token(token_id):
                pieces += [text[written:begin], token_id]
                written = end
        return [piece for piece in [*pieces, text[written:]] if piece != ""] or [""]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Made for the first grammar: it takes as long as the vocabulary is large."""
        if not self._eos_ids:
            raise InvalidGrammar("The model has no token that ends a text, so that no grammar could end either.")
        try:
            return LLTokenizer(
                self._backend.to_str(),
                n_vocab=max(self.vocab_size, self._backend.get_vocab_size()),
                eos_token=list(self._eos_ids),
            )
        except ValueError as error:
            raise InvalidGrammar(f"Answers of this model can't be held to a grammar: {error}") from error


def _parts(text: str) -> list[Mapping[str, Any]]:
    try:
        parts = json.loads(text)["grammars"]
        return [{"name": part["name"], **part} for part in (parts[0], *parts[1:])]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InvalidGrammar("It is no text that `compile` wrote.") from None


def _spelled(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        _refuse(matcher.get_error() or "It can't be compiled.")


def _refuse(message: str) -> None:
    """Raise what llguidance says, without its state; nothing: it is content."""
    if message:
        raise InvalidGrammar(readable(message))


def readable(message: str) -> str:
    """llguidance's sentence without the state and the source that follow it."""
    sentence = _AFTER.split(message, maxsplit=1)[0].strip()
    return "No text matches it." if sentence == "NoExtensionBias" else sentence[:_MESSAGE_CHARACTERS]
