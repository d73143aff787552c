from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_server.text.names import REASONING_PARSERS
from pagemill_server.text.reasoning import REASONING_FORMATS, Stand, reasoning_parser, stand_of, with_reasoning
from pagemill_server.text.tool_formats import TOOL_FORMATS
from tests.server.text.parsed import Parsed, cuts, parse, pieces

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</think>"}}\n</tool_call>'


def read(name: str, stand: Stand, text: str, sizes: list[int] | None = None) -> Parsed:
    return parse(reasoning_parser(REASONING_FORMATS[name], stand), pieces(text, sizes or [len(text) or 1]))


def test_the_flags_names_are_the_codes() -> None:
    assert tuple(sorted(REASONING_FORMATS)) == REASONING_PARSERS


@pytest.mark.parametrize("sizes", [[1], [2, 7], [1000]])
@pytest.mark.parametrize(
    ("name", "stand", "text", "thoughts", "words"),
    [
        ("qwen3", "untouched", "<think>\nI see.\n\nYes.\n</think>\n\nHi\n there\n", "I see.\n\nYes.", "Hi\n there\n"),
        ("qwen3", "untouched", "\n<think>a</think>b", "a", "b"),  # the template left a line's end to the model
        ("qwen3", "untouched", "<think>\n\n</think>\n\nHi", "", "Hi"),
        ("qwen3", "untouched", "Hi <think>a</think>", "", "Hi <think>a</think>"),  # an answer that speaks of markers
        ("qwen3", "untouched", " <thin", "", " <thin"),
        ("qwen3", "untouched", "<think>only half a thou", "only half a thou", ""),
        ("qwen3", "untouched", "<think>a</thin", "a</thin", ""),
        ("qwen3", "untouched", "", "", ""),
        ("qwen3", "open", "a</think>\n\n  b", "a", "  b"),  # spaces may be an indented line's
        ("qwen3", "open", "<think>\na</think>b", "a", "b"),  # the model opens it again
        ("qwen3", "open", "all of it\n", "all of it", ""),
        ("qwen3", "closed", "b </think>", "", "b </think>"),
        ("deepseek_r1", "untouched", "a</think>b", "a", "b"),
        ("deepseek_r1", "untouched", "<think>a</think>b", "a", "b"),
        ("deepseek_r1", "untouched", "a", "a", ""),
        ("deepseek_r1", "closed", "b", "", "b"),
        ("mistral", "untouched", "[THINK]a [TOOL_CALLS][/THINK]b", "a [TOOL_CALLS]", "b"),
    ],
)
def test_thoughts_come_first(name: str, stand: Stand, text: str, thoughts: str, words: str, sizes: list[int]) -> None:
    assert read(name, stand, text, sizes) == Parsed(words, (), thoughts)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "\n", " ", "a", CALL]), max_size=8).map("".join),
    st.sampled_from(REASONING_PARSERS),
    st.sampled_from(["open", "closed", "untouched"]),
    cuts(),
)
def test_any_cut_is_read_alike(text: str, name: str, stand: Stand, sizes: list[int]) -> None:
    def made() -> Parsed:
        reasoning = reasoning_parser(REASONING_FORMATS[name], stand)
        return parse(with_reasoning(reasoning, TOOL_FORMATS["hermes"].parser(())), parts)

    parts = [text]
    whole = made()
    parts = pieces(text, sizes)
    assert made() == whole


def test_what_follows_thoughts_is_read_for_calls_and_thoughts_are_not() -> None:
    parser = with_reasoning(reasoning_parser(REASONING_FORMATS["qwen3"]), TOOL_FORMATS["hermes"].parser(()))
    seen = parse(parser, [f"<think>shall I {CALL[:40]}?</think>\n\nYes.\n{CALL}"])
    assert seen == Parsed("Yes.", (("f", '{"a": "</think>"}'),), f"shall I {CALL[:40]}?")
    alone = reasoning_parser(REASONING_FORMATS["qwen3"])
    assert with_reasoning(alone, None) is alone


def test_a_thought_comes_out_as_it_is_thought() -> None:
    parser = reasoning_parser(REASONING_FORMATS["qwen3"], "open")
    assert [len(parser.push(piece)) for piece in ("one", " two", "\n", "three</")] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("prompt", "continued", "stand"),
    [
        ("<|im_start|>assistant\n", "", "untouched"),
        ("<|im_start|>assistant\n<think>\n", "", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "", "closed"),
        ("<|im_start|>user\nwhat is <think><|im_end|>\n<|im_start|>assistant\n", "", "untouched"),
        ("assistant\n<think>half a tho", "<think>half a tho", "open"),
        ("assistant\n<think>a</think>half an ans", "<think>a</think>half an ans", "closed"),
        ("assistant\nhalf an ans", "half an ans", "untouched"),
    ],
)
def test_where_a_prompt_leaves_the_reasoning(prompt: str, continued: str, stand: Stand) -> None:
    assert stand_of(REASONING_FORMATS["qwen3"], prompt, continued) == stand
