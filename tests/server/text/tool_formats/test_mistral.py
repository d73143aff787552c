from __future__ import annotations

import pytest

from pagemill_server.text.tool_formats.mistral import Mistral
from tests.server.text.parsed import Parsed, parse, pieces

f, g = ("f", '{"a": 1}'), ("g", "{}")
T = "[TOOL_CALLS]"


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        (f'Hi{T} [{{"name": "f", "arguments": {{"a": 1}}}}, {{"arguments": {{}}, "name": "g"}}]\n', "Hi", (f, g)),
        (f'{T}f[ARGS]{{"a": 1}}{T}g[CALL_ID]abc123XYZ[ARGS]{{}}', "", (f, g)),
        (f'{T}f{{"a": 1}}', "", (f,)),
        (f'{T} f[ARGS] {{"a": 1}} there', "there", (f,)),
        (f'{T}[{{"name": "f", "arguments": {{"a": 1}}}}', "", (f,)),  # the bracket never came
        (f'{T}[{{"name": "f", "arguments": {{"a": 1}}}}, oh', ", oh", (f,)),
        (f'{T}[{{"name": "f", "arguments": {{"a": 1}}}}, {{"x', ', {"x', (f,)),
        (f"{T} not a call", f"{T} not a call", ()),
        (f"{T}[]", f"{T}[]", ()),
        (f"{T}f[ARGS]nothing", f"{T}f[ARGS]nothing", ()),
        (f"{T}[ARGS]{{}}", f"{T}[ARGS]{{}}", ()),
        (f"{T}{T}g[ARGS]{{}}", T, (g,)),
        (f"Hi{T}", "Hi", ()),
        (f'{T}f[ARGS]{{"a": oh}}{T}g[ARGS]{{}}', "", (("f", '{"a": oh}'), g)),
    ],
)
def test_is_read(text: str, words: str, calls: tuple[tuple[str, str], ...], size: int) -> None:
    assert parse(Mistral().parser(()), pieces(text, [size])) == Parsed(words, calls)


def test_ids_are_as_the_template_wants_them() -> None:
    ids = {Mistral().call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)
