from __future__ import annotations

import json

import pytest

from pagemill_server.text.message import CallArguments, CallBegins
from pagemill_server.text.tool_formats.hermes import Hermes
from tests.server.text.parsed import Parsed, parse, pieces

F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
f, g = ("f", '{"a": 1}'), ("g", "{}")


def read(text: str, size: int = 10_000) -> Parsed:
    return parse(Hermes().parser(()), pieces(text, [size]))


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        (f"Well.\n{F}\n{G}", "Well.", (f, g)),
        (f"\n\n{F}\n\n", "", (f,)),
        (f"A\n{F}\nB\n", "A\n\nB", (f,)),  # white space between words is kept, at the message's ends it isn't
        (f"\n{F}\n B", "B", (f,)),
        ("  no call \n", "  no call \n", ()),
        # What is no call is words to the letter, and what comes after it is read again.
        ("Use <tool_call> tags.", "Use <tool_call> tags.", ()),
        ("<tool_call>\nnot JSON</tool_call>\n", "<tool_call>\nnot JSON</tool_call>\n", ()),
        ('<tool_call>{"nome": "f"}</tool_call>', '<tool_call>{"nome": "f"}</tool_call>', ()),
        ('<tool_call>{"name": 1, "arguments": {}}', '<tool_call>{"name": 1, "arguments": {}}', ()),
        ('<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', ()),
        ('<tool_call>{"name": "f", "arguments": "x"}', '<tool_call>{"name": "f", "arguments": "x"}', ()),
        ('<tool_call>{"name": "", "arguments": {}}', '<tool_call>{"name": "", "arguments": {}}', ()),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}', '<tool_call>{"name": "\\ud800", "arguments": {}}', ()),
        ('<tool_call>{"name": "f", "arguments": "{\\ud800"}', '<tool_call>{"name": "f", "arguments": "{\\ud800"}', ()),
        (f'<tool_call>{{"name": "f", {F}', '<tool_call>{"name": "f",', (f,)),
        ("<tool_call><tool_call>{}</tool_call>", "<tool_call><tool_call>{}</tool_call>", ()),
        # What is cut off: a lone marker says nothing, half a marker may be text.
        ("Well.\n<tool_call>\n", "Well.\n", ()),
        ("Well.\n<tool_ca", "Well.\n<tool_ca", ()),
        ('<tool_call>{"name": "f", "argum', '<tool_call>{"name": "f", "argum', ()),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', "", (("f", '{"a": "x'),)),
        # As models write it beside the letter of the format.
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", (f,)),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", (f,)),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (f,)),
        ('<tool_call>{"name": "g", "arguments": null}</tool_call>', "", (g,)),
        ('<tool_call>{"name": "g"}</tool_call>', "", (g,)),
        ('<tool_call>{"id": [1], "name": "f", "arguments": {"a": 1}, "x": {"y": 2}}</tool_call>', "", (f,)),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', "", (f,)),  # a brace too many
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', "", (f,)),  # and one too few
        (f"{F[:-13]}\n{G}", "", (f, g)),  # an end marker that was forgotten
        (f"{F[:-13]} and so on", "and so on", (f,)),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g"}\n</tool_call>', "", (f, g)),
        ('<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}</tool_call>', "", (("f", '{"a": "1\\n2"}'),)),
        # Arguments that break are the client's to see, up to the next marker.
        (f'<tool_call>{{"name": "f", "arguments": {{"a": tru}}}}</tool_call>{G}', "", (("f", '{"a": tru}}'), g)),
        (f'<tool_call>{{"name": "f", "arguments": {{"a" 1{G}', "", (("f", '{"a" 1'), g)),
    ],
)
def test_is_read(text: str, words: str, calls: tuple[tuple[str, str], ...], size: int) -> None:
    assert read(text, size) == Parsed(words, calls)


def test_markers_within_arguments_are_arguments() -> None:
    arguments = json.dumps({"text": '</tool_call><tool_call>{"name": "g", "arguments": {}}'})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert read(text, 1) == read(text) == Parsed("", (("f", arguments),))


def test_arguments_come_as_they_are_written() -> None:
    parser = Hermes().parser(())
    assert parser.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert parser.push('{"a": "x') == [CallBegins(0, "f"), CallArguments(0, '{"a": "x')]
    assert parser.push("y") == [CallArguments(0, "y")]
    assert parser.push('"}}\n</tool_call>') == [CallArguments(0, '"}')]
    assert parser.finish() == []


def test_ids_look_like_openais_and_differ() -> None:
    ids = {Hermes().call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 29 and i.startswith("call_") and int(i[5:], 16) >= 0 for i in ids)
