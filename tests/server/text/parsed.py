"""A parser's events, joined as a client joins them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from pagemill_server.text.message import CallArguments, CallBegins, MessageParser, Thought, Words

Call = tuple[str, str]  # name, arguments as text


@dataclass(frozen=True)
class Parsed:
    words: str = ""
    calls: tuple[Call, ...] = ()
    thoughts: str = ""


def parse(parser: MessageParser, pieces: Iterable[str]) -> Parsed:
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    words, thoughts = "", ""
    calls: list[Call] = []
    for event in events:
        match event:
            case Words(text):
                words += text
            case Thought(text):
                thoughts += text
            case CallBegins(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return Parsed(words, tuple(calls), thoughts)


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text in pieces of these sizes, over and over."""
    found: list[str] = []
    start = 0
    while start < len(text):
        size = cuts[len(found) % len(cuts)]
        found.append(text[start : start + size])
        start += size
    return found


def cuts() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 12), min_size=1, max_size=12)
