"""What becomes of an engine's outputs: text, log-probabilities in step with it, ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pagemill_server.api.choice import Choice, Piece, ShownToken
from pagemill_server.engine.request import FinishReason, RequestOutput, SampledToken
from pagemill_server.text.detokenizer import TokenBytes
from tests.server.tiny import IM_END


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> TokenBytes:
    return TokenBytes(Tokenizer.from_file(str(tiny / "tokenizer.json")))


def feed(choice: Choice, ids: list[int], reason: FinishReason | None = FinishReason.LENGTH) -> list[Piece]:
    pieces = []
    for place, token in enumerate(ids, start=1):
        last = reason if place == len(ids) else None
        pieces.append(choice.feed(RequestOutput("r", (SampledToken(token, -0.5),), last, num_cached_tokens=3)))
        if pieces[-1].finish_reason is not None:
            break
    return pieces


def joined(pieces: list[Piece]) -> tuple[str, list[ShownToken]]:
    return "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.tokens]


def test_a_character_comes_out_whole(vocabulary: TokenBytes) -> None:
    pieces = feed(Choice(vocabulary, (), logprobs=True), list("a€b".encode()))
    assert [piece.text for piece in pieces] == ["a", "", "", "€", "b"]
    assert [len(piece.tokens) for piece in pieces] == [1, 0, 0, 3, 1]
    assert [token.offset for token in joined(pieces)[1]] == [0, 1, 1, 1, 2]
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + [FinishReason.LENGTH]


def test_half_a_character_at_the_end(vocabulary: TokenBytes) -> None:
    text, tokens = joined(feed(Choice(vocabulary, (), logprobs=True), [0x61, 0xE2, 0x82]))
    assert text == "a�"
    assert len(tokens) == 3


def test_the_stop_token_is_counted_and_not_shown(vocabulary: TokenBytes) -> None:
    choice = Choice(vocabulary, (), logprobs=True)
    text, tokens = joined(feed(choice, [0x61, 0x62], FinishReason.STOP))
    assert (text, len(tokens), choice.num_tokens, choice.num_cached_tokens) == ("a", 1, 2, 3)


def test_special_tokens_have_no_text(vocabulary: TokenBytes) -> None:
    assert joined(feed(Choice(vocabulary, (), logprobs=False), [0x61, IM_END, 0x62]))[0] == "ab"


def test_a_stop_string_ends_it_though_the_engine_goes_on(vocabulary: TokenBytes) -> None:
    choice = Choice(vocabulary, ("END",), logprobs=True)
    pieces = feed(choice, list(b"one END two"))
    text, tokens = joined(pieces)
    assert text == "one "
    assert pieces[-1].finish_reason is FinishReason.STOP
    assert [token.offset for token in tokens] == [0, 1, 2, 3]
    assert choice.num_tokens == 7  # what was sampled, the stop string included


def test_a_stop_string_may_begin_like_one_and_then_not_be_one(vocabulary: TokenBytes) -> None:
    pieces = feed(Choice(vocabulary, ("END",), logprobs=True), list(b"EN E"))
    assert [piece.text for piece in pieces] == ["", "", "EN ", "E"]
    assert [len(piece.tokens) for piece in pieces] == [0, 0, 3, 1]


def test_several_tokens_in_one_output(vocabulary: TokenBytes) -> None:
    tokens = tuple(SampledToken(byte) for byte in b"abc")
    choice = Choice(vocabulary, ("b",), logprobs=False)
    assert choice.feed(RequestOutput("r", tokens, FinishReason.LENGTH)) == Piece("a", (), FinishReason.STOP)


def test_no_stop_string_that_the_first_tokens_complete_ends_it(vocabulary: TokenBytes) -> None:
    choice = Choice(vocabulary, ("ab",), logprobs=True, min_tokens=4)
    text, tokens = joined(feed(choice, list(b"abababab")))
    assert (text, len(tokens), choice.num_tokens) == ("abab", 4, 6)


def test_a_stop_string_across_the_minimum_ends_it(vocabulary: TokenBytes) -> None:
    text, _ = joined(feed(Choice(vocabulary, ("abc",), logprobs=False, min_tokens=2), list(b"xabcd")))
    assert text == "x"


def test_where_text_stands_before_it_offsets_go_on(vocabulary: TokenBytes) -> None:
    pieces = feed(Choice(vocabulary, ("c",), logprobs=True, offset=5), list(b"abcd"))
    text, tokens = joined(pieces)
    assert (text, [token.offset for token in tokens]) == ("ab", [5, 6])


@pytest.mark.parametrize("shown", [False, True])
def test_the_stop_token_among_the_tokens(vocabulary: TokenBytes, shown: bool) -> None:
    choice = Choice(vocabulary, (), logprobs=True, shows_stop=shown)
    text, tokens = joined(feed(choice, [0x61, IM_END], FinishReason.STOP))
    assert text == "a"
    assert [(token.sampled.token_id, token.offset) for token in tokens] == [(0x61, 0), (IM_END, 1)][: 1 + shown]


def test_a_prompts_log_probabilities_are_gathered(vocabulary: TokenBytes) -> None:
    choice = Choice(vocabulary, (), logprobs=False)
    first = RequestOutput("r", prompt_logprobs=(SampledToken(1, -1.0), SampledToken(2, -2.0)))
    assert choice.feed(first) == Piece("")
    choice.feed(RequestOutput("r", (SampledToken(0x61),), prompt_logprobs=(SampledToken(3, -3.0),)))
    assert [token.token_id for token in choice.prompt_logprobs] == [1, 2, 3]
    assert not choice.over
    choice.feed(RequestOutput("r", (SampledToken(0x61),), FinishReason.LENGTH))
    assert choice.over


IDS = st.lists(st.integers(0, 258), min_size=1)


@given(ids=IDS)
def test_every_token_goes_out_once_and_in_order(vocabulary: TokenBytes, ids: list[int]) -> None:
    pieces = feed(Choice(vocabulary, (), logprobs=True), ids)
    text, tokens = joined(pieces)
    assert [token.sampled.token_id for token in tokens] == ids
    assert b"".join(vocabulary.of(token) for token in ids).decode("utf-8", "replace") == text
    offsets = [token.offset for token in tokens]
    assert offsets == sorted(offsets)
    shown = 0
    for piece in pieces[:-1]:
        shown += len(piece.text)
        assert all(token.offset <= shown for token in piece.tokens)


@given(ids=IDS, stops=st.lists(st.text("ab\n\u20ac", min_size=1, max_size=3), max_size=2))
def test_whatever_stops_it_text_and_tokens_end_together(
    vocabulary: TokenBytes, ids: list[int], stops: list[str]
) -> None:
    text, tokens = joined(feed(Choice(vocabulary, tuple(stops), logprobs=True), ids))
    assert not any(stop in text for stop in stops)
    assert [token.sampled.token_id for token in tokens] == ids[: len(tokens)]
    assert all(token.offset <= len(text) for token in tokens)
