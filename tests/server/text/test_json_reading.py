from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_server.text import json_reading
from pagemill_server.text.cursor import Pulled, Reading
from tests.server.text.parsed import cuts, pieces

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


class Value(Pulled):
    """Reads one value and keeps what it read."""

    def __init__(self, mend: bool) -> None:
        super().__init__()
        self._mend = mend
        self.is_value: bool | None = None

    def message(self) -> Reading[None]:
        self.is_value = yield from json_reading.value(self.cursor, self._mend)

    def all_of(self, parts: list[str]) -> tuple[bool | None, str, str]:
        for part in parts:
            self.push(part)
        self.finish()
        return self.is_value, self.cursor.since(0), self.cursor.rest


def read(text: str, sizes: list[int] | None = None, mend: bool = False) -> tuple[bool | None, str, str]:
    return Value(mend).all_of(pieces(text, sizes or [len(text) or 1]))


@settings(max_examples=200, deadline=None)
@given(JSON, cuts(), st.booleans(), st.sampled_from([None, 1]))
def test_a_value_ends_where_it_ends(value: object, sizes: list[int], escaped: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    assert read(text + "] x", sizes) == (True, text, "] x")


@settings(max_examples=300, deadline=None)
@given(JSON, st.integers(0, 200), st.sampled_from('"{}[],:\\x0-.eu '), cuts())
def test_what_python_refuses_is_none(value: object, place: int, character: str, sizes: list[int]) -> None:
    text = json.dumps([value])
    place %= len(text)
    broken = text[:place] + character + text[place + 1 :]
    try:
        json.loads(broken, parse_constant=lambda name: 1 / 0)
        valid = True
    except (ValueError, ZeroDivisionError):
        valid = False
    is_value, _, rest = read(broken, sizes)
    assert (is_value and not rest.strip()) == valid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        '{"a":',
        '{"a":1',
        "[1,",
        '"a',
        '"a\\',
        "tru",
        "-",
        "1.",
        "01",
        "NaN",
        "{'a': 1}",
        '{"a": 1,}',
        "[1,]",
    ],
)
def test_cut_off_or_almost_json_is_none(text: str) -> None:
    assert read(text)[0] is False


def test_depth_costs_no_more_than_its_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert read(deep) == (True, deep, "")


def test_control_characters_in_strings_are_mended_and_elsewhere_left() -> None:
    text = '{\n\t"a\n": "x\ty\x00", "b": []\n}'
    for sizes in ([1], [3], [100]):
        is_value, mended, _ = read(text, sizes, mend=True)
        assert is_value
        assert mended == '{\n\t"a\\n": "x\\ty\\u0000", "b": []\n}'
        assert json.loads(mended) == {"a\n": "x\ty\0", "b": []}
    assert read(text)[:2] == (True, text)
