from __future__ import annotations

import pytest

from pagemill_server.text.message import Words
from pagemill_server.text.tool_formats.llama3 import Llama3
from tests.server.text.parsed import Parsed, parse, pieces

F, G = '{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "parameters": {}}'
f, g = ("f", '{"a": 1}'), ("g", "{}")
TAG = "<|python_tag|>"


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        (f"{F}; {G}", "", (f, g)),
        (f"\n{F}\n{G};\n", "", (f, g)),
        (f"{TAG}{F}", "", (f,)),
        (f"Let me see. {TAG}{F}{TAG}{G}", "Let me see. ", (f, g)),
        (f"{F} And so on.", "And so on.", (f,)),
        (f'{F}; {{"a": 1}}', '; {"a": 1}', (f,)),
        # JSON that isn't just a name and arguments is an answer.
        ('{"a": 1}', '{"a": 1}', ()),
        ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', ()),
        ('{"name": "Bob"}', '{"name": "Bob"}', ()),
        ('  {"parameters": {}}', '  {"parameters": {}}', ()),
        ("{}", "{}", ()),
        ("{ that is a brace", "{ that is a brace", ()),
        ('[{"name": "f", "parameters": {}}]', '[{"name": "f", "parameters": {}}]', ()),
        (f"You could say {F}", f"You could say {F}", ()),  # only where nothing comes before it, or the tag does
        # The tag marks code for its built-in tools, too.
        (f"{TAG}brave_search.call(query='x')", f"{TAG}brave_search.call(query='x')", ()),
        (f'{TAG}{{"name": "g"}}', "", (g,)),
        (f"Well.{TAG}", "Well.", ()),
        ('{"type": "function", "name": "f", "parameters": {"a": 1}}', "", (f,)),
        ('{"name": "f", "parameters": {"a": 1', "", (("f", '{"a": 1'),)),
    ],
)
def test_is_read(text: str, words: str, calls: tuple[tuple[str, str], ...], size: int) -> None:
    assert parse(Llama3().parser(()), pieces(text, [size])) == Parsed(words, calls)


def test_an_answer_in_json_is_held_no_longer_than_it_may_be_a_call() -> None:
    parser = Llama3().parser(())
    assert parser.push('{"name": "Bob", "a') == []
    assert parser.push('ge": ') == [Words('{"name": "Bob", "age":')]
    assert parser.push("3}") == [Words(" 3}")]
