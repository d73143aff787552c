"""How many tokens are reasoning: what the parser calls thoughts, and the markers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.api.thinking import ThinkingMeter
from pagemill_server.text.message import Thought
from pagemill_server.text.reasoning import REASONING_FORMATS, Stand, reasoning_parser


def count(text: str, form: str = "qwen3", stand: Stand = "untouched", size: int = 1) -> int:
    """Tokens of `size` characters."""
    meter = ThinkingMeter(REASONING_FORMATS[form], stand)
    tokens = 0
    for place in range(0, len(text), size):
        tokens += 1
        meter.push(text[place : place + size], tokens)
    return meter.count(tokens)


@pytest.mark.parametrize(
    ("text", "form", "stand", "tokens"),
    [
        ("abc", "qwen3", "untouched", 0),
        ("<think>ab</think>cd", "qwen3", "untouched", 17),
        ("\n<think>ab</think>cd", "qwen3", "untouched", 18),
        ("<think>ab", "qwen3", "untouched", 9),
        ("<thi", "qwen3", "untouched", 0),
        ("<thin>a</think>", "qwen3", "untouched", 0),
        ("ab</think>cd", "qwen3", "open", 10),
        ("ab", "qwen3", "open", 2),
        ("ab", "qwen3", "closed", 0),
        ("ab</think>cd</think>", "deepseek_r1", "untouched", 10),
        ("", "deepseek_r1", "untouched", 0),
    ],
)
def test_count(text: str, form: str, stand: Stand, tokens: int) -> None:
    assert count(text, form, stand) == tokens


def test_all_of_it_in_one_token() -> None:
    assert count("<think>a</think>b", size=100) == 1
    assert count("<think>a</think>b", size=16) == 1


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<th", "x", "\n", "</"]), max_size=8),
    size=st.integers(1, 30),
    stand=st.sampled_from(["open", "closed", "untouched"]),
    form=st.sampled_from(["qwen3", "deepseek_r1"]),
)
def test_it_counts_where_the_parser_finds_thoughts(pieces: list[str], size: int, stand: Stand, form: str) -> None:
    text = "".join(pieces)
    parser = reasoning_parser(REASONING_FORMATS[form], stand)
    thought = any(isinstance(event, Thought) for event in [*parser.push(text), *parser.finish()])
    assert not thought or count(text, form, stand, size) > 0
    assert (
        (count(text, form, stand, size) - 1) * size < count(text, form, stand) <= count(text, form, stand, size) * size
    )
