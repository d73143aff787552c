"""Of any text whatever: it is read alike however it is cut, nothing is lost, and what comes out can be sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_server.text.tool_formats import TOOL_FORMATS
from pagemill_server.text.tools import ToolFormat
from tests.server.text.parsed import cuts, parse, pieces

PARTS = (
    *(marker for form in TOOL_FORMATS.values() for marker in form.markers),
    *(
        '{"name": "f", "arguments": ',
        '{"name": "g", "parameters": ',
        '{"arguments": {"a": 1}, ',
        '"name": "h"',
        '{"a": "b"}',
    ),
    *(
        "<",
        "[",
        "]",
        "{",
        "}",
        '"',
        "\\",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "f",
        "1",
        "null",
        "é",
        "\\ud83d",
        "\\u00e9",
        "words",
    ),
)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
@settings(max_examples=400, deadline=None)
@given(TEXTS, cuts())
def test_is_read_alike_however_it_is_cut(form: ToolFormat, text: str, sizes: list[int]) -> None:
    whole = parse(form.parser(()), [text])
    assert parse(form.parser(()), pieces(text, sizes)) == whole
    assert all(name and arguments.startswith("{") for name, arguments in whole.calls)
    "".join([whole.words, *map("".join, whole.calls)]).encode()
    if not whole.calls:
        cut_off = next((m for m in form.markers if text.rstrip().endswith(m)), "")
        assert text == whole.words or text.rstrip().removesuffix(cut_off) == whole.words
