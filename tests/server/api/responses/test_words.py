"""Which tokens stand beside a message's words, however the text was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.api.responses.words import SaidWords
from pagemill_server.engine.request import FinishReason, SampledToken
from pagemill_server.text.message import Words
from pagemill_server.text.reasoning import REASONING_FORMATS, reasoning_parser

ANSWER = "<think>\nA <b> thought\n</think>\n\nthink <and> more"
TOKENS = ["<think>", "\nA <", "b> thought\n", "</", "think>\n", "\nth", "ink <", "and> ", "more"]


def tokens_of(parts: Sequence[str]) -> list[ShownToken]:
    offsets = [sum(map(len, parts[:place])) for place in range(len(parts))]
    return [ShownToken(SampledToken(place, -1.0, ()), offset) for place, offset in enumerate(offsets)]


def said(pieces: Sequence[Piece], *, parsed: bool = True) -> tuple[str, list[int]]:
    """The words and the ids of the tokens beside them."""
    parser = reasoning_parser(REASONING_FORMATS["qwen3"]) if parsed else None
    words = SaidWords(parser, logprobs=True)
    made = [one for piece in pieces for one in words.push(piece)]
    text = "".join(event.text for event, _ in made if isinstance(event, Words))
    return text, [token.sampled.token_id for _, tokens in made for token in tokens]


def test_only_words_have_tokens() -> None:
    assert "".join(TOKENS) == ANSWER
    whole = Piece(ANSWER, tuple(tokens_of(TOKENS)), FinishReason.STOP)
    assert said([whole]) == ("think <and> more", [6, 7, 8])


@given(st.sets(st.integers(1, len(TOKENS) - 1)))
def test_any_cuts_between_tokens(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(TOKENS)]
    tokens = tokens_of(TOKENS)
    pieces = [Piece("".join(TOKENS[a:b]), tuple(tokens[a:b])) for a, b in pairwise(edges)]
    pieces[-1] = Piece(pieces[-1].text, pieces[-1].tokens, FinishReason.LENGTH)
    assert said(pieces) == ("think <and> more", [6, 7, 8])


def test_a_token_that_comes_after_its_text() -> None:
    """A stop string held its end back."""
    tokens = tokens_of(["<think>", "a</think>", "words", "!"])
    pieces = [
        Piece("<think>a</think>wor", tuple(tokens[:2])),
        Piece("ds!", tuple(tokens[2:]), FinishReason.STOP),
    ]
    assert said(pieces) == ("words!", [2, 3])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_without_a_parser_all_tokens(cut: int) -> None:
    """One without text waits for the next that has some, and the last are not lost."""
    tokens = tokens_of(["", "ab", "", "c", ""])
    texts = ["", "ab", "", "c", ""]
    edges = [0, cut, 5]
    pieces = [Piece("".join(texts[a:b]), tuple(tokens[a:b])) for a, b in pairwise(edges)]
    pieces[-1] = Piece(pieces[-1].text, pieces[-1].tokens, FinishReason.STOP)
    assert said(pieces, parsed=False) == ("abc", [0, 1, 2, 3, 4])
