"""A choice's message out of its text: streamed or whole the same, with the tokens beside what shows them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.api.conversation import Turn
from pagemill_server.api.speech import Speech, message_of
from pagemill_server.engine.request import FinishReason, SampledToken
from pagemill_server.text.message import MessageParser
from pagemill_server.text.one_call import OneCall
from pagemill_server.text.reasoning import REASONING_FORMATS, reasoning_parser, with_reasoning
from pagemill_server.text.tool_formats import TOOL_FORMATS

HERMES = TOOL_FORMATS["hermes"]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"


def turn(tools: str = "hermes", thinks: bool = True, parallel: bool = True) -> Turn:
    def parser() -> MessageParser:
        calls = TOOL_FORMATS[tools].parser(())
        calls = calls if parallel else OneCall(calls)
        return with_reasoning(reasoning_parser(REASONING_FORMATS["qwen3"]), calls) if thinks else calls

    return Turn((1,), "", parser, frozenset(), lambda: "call_x")


def whole(text: str, reason: FinishReason = FinishReason.STOP, **options: Any) -> tuple[dict[str, Any], Speech]:
    speech = Speech(options.pop("turn", None) or turn(), **options)
    deltas = [delta for delta, _ in speech.deltas(Piece(text, (), reason))]
    return message_of(deltas, thinks=True), speech


def test_thoughts_words_and_a_call() -> None:
    message, speech = whole(THOUGHT + "Let me look.\n" + CALL)
    assert message == {
        "role": "assistant",
        "content": "Let me look.",
        "refusal": None,
        "annotations": [],
        "reasoning": "hm",
        "tool_calls": [
            {"id": "call_x", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}},
        ],
    }
    assert speech.called


def test_only_calls_have_no_content() -> None:
    message, _ = whole(f"{CALL}\n{CALL}")
    assert message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["look", "look"]


def test_nothing_at_all_is_an_empty_content() -> None:
    message, speech = whole("")
    assert (message["content"], message["reasoning"], "tool_calls" in message) == ("", None, False)
    assert not speech.called


def test_one_call_where_no_more_are_wanted() -> None:
    message, _ = whole(f"{CALL}\n{CALL}", turn=turn(parallel=False))
    assert len(message["tool_calls"]) == 1


def test_openais_older_word_for_it() -> None:
    message, _ = whole(CALL, legacy=True)
    assert message["function_call"] == {"name": "look", "arguments": '{"at": "é"}'}
    assert (message["content"], "tool_calls" in message) == (None, False)


def test_thoughts_may_be_left_out() -> None:
    message, _ = whole(THOUGHT + "yes", reasoning=False)
    assert (message["content"], message["reasoning"]) == ("yes", None)


def test_a_call_that_was_cut_off_is_said_as_far_as_it_came() -> None:
    message, _ = whole(CALL[:50], FinishReason.LENGTH)
    assert message["tool_calls"][0]["function"]["arguments"] == CALL[:50].partition('"arguments": ')[2]


def test_a_last_token_without_text_is_no_content_beside_a_call() -> None:
    """The token after the call, which ends the turn, is shown with nothing said."""
    speech = Speech(turn())
    last = (ShownToken(SampledToken(1, -1.0), 0),)
    deltas = [*speech.deltas(Piece(CALL, (), None)), *speech.deltas(Piece("", last, FinishReason.STOP))]
    assert message_of((delta for delta, _ in deltas), thinks=False)["content"] is None


def test_deltas_to_the_letter() -> None:
    speech = Speech(turn())
    deltas = [delta for delta, _ in speech.deltas(Piece(THOUGHT + "a" + CALL, (), FinishReason.STOP))]
    thought, words, begun, *more = deltas
    assert (thought, words) == ({"reasoning": "hm"}, {"content": "a"})
    call = {"index": 0, "id": "call_x", "type": "function", "function": {"name": "look", "arguments": ""}}
    assert begun == {"tool_calls": [call]}
    assert all(list(delta["tool_calls"][0]) == ["index", "function"] for delta in more)
    assert "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in more) == '{"at": "é"}'


PARTS = [
    CALL,
    THOUGHT,
    "words ",
    "\n",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    '{"a"',
    "}",
    "é",
    "[TOOL_CALLS]",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join) | st.text(max_size=20)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS))
@given(text=TEXTS, places=st.lists(st.integers(0, 400), max_size=10), thinks=st.booleans(), parallel=st.booleans())
def test_streamed_is_whole(form: str, text: str, places: list[int], thinks: bool, parallel: bool) -> None:
    made = turn(form, thinks, parallel)
    speech, pieces = Speech(made), cut(text, places)
    streamed: list[Any] = []
    for place, piece in enumerate(pieces):
        reason = FinishReason.STOP if place == len(pieces) - 1 else None
        tokens = (ShownToken(SampledToken(place, -1.0), 0),)
        streamed += speech.deltas(Piece(piece, tokens, reason))
    expected, other = whole(text, turn=made)
    assert message_of((delta for delta, _ in streamed), thinks=True) == expected
    assert speech.called == other.called
    assert [token.sampled.token_id for _, tokens in streamed for token in tokens] == list(range(len(pieces)))
    assert all("tool_calls" in delta or "".join(delta.values()) or tokens for delta, tokens in streamed)


def test_a_token_waits_for_its_text() -> None:
    speech = Speech(turn(thinks=False))
    shown = []
    for place, text in enumerate(["a", "<", "b"]):
        tokens = (ShownToken(SampledToken(place, -1.0), place),)
        shown.append([(d, len(t)) for d, t in speech.deltas(Piece(text, tokens))])
    assert shown == [[({"content": "a"}, 1)], [], [({"content": "<b"}, 2)]]
