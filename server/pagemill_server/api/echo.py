"""A prompt said again before its answer, as /v1/completions does with `echo`: its text, and where in it each token begins. Pure.

Made by `api/completions` in a text thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagemill_server.api.choice import ShownToken
from pagemill_server.engine.request import SampledToken
from pagemill_server.text.detokenizer import Detokenizer, TokenBytes


@dataclass(frozen=True, slots=True)
class Echo:
    """One prompt's."""

    text: str
    token_ids: tuple[int, ...]
    offsets: tuple[int, ...]  # characters of `text` before each token

    def tokens(self, logprobs: Sequence[SampledToken]) -> list[ShownToken]:
        """Its tokens with their log-probabilities, of which the first has none: nothing comes before it."""
        known = [SampledToken(self.token_ids[0]), *logprobs]
        return [ShownToken(token, offset) for token, offset in zip(known, self.offsets, strict=False)]


def echo_of(vocabulary: TokenBytes, token_ids: tuple[int, ...], text: str | None) -> Echo:
    """Of a prompt that the client sent as this text, or as token ids, which are then spelled, special ones by name."""
    detokenizer = Detokenizer(vocabulary, special=True)
    spelled, offsets = "", []
    for token_id in token_ids:
        offsets.append(len(spelled) + detokenizer.cuts_off(token_id))
        spelled += detokenizer.push(token_id)
    spelled += detokenizer.flush()
    if text is None:
        return Echo(spelled, token_ids, tuple(offsets))
    # What the tokenizer put in front (BOS, SentencePiece's space) the client did not write.
    ahead = len(spelled) - len(text)
    return Echo(text, token_ids, tuple(min(len(text), max(0, offset - ahead)) for offset in offsets))
