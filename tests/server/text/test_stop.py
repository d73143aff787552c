from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.text.stop import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    search = StopStrings(stops)
    shown = [search.push(piece) for piece in pieces]
    if not search.matched:
        shown.append(search.flush())
    return shown, search.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["b"], ["abc"], ["a"], True),
        (["STOP"], ["one ST", "OP two"], ["one ", ""], True),
        (["STOP"], ["one ST", "AR"], ["one ", "STAR", ""], False),
        (["STOP"], ["one S"], ["one ", "S"], False),
        (["aab"], ["aa", "ab"], ["", "a"], True),  # the held part shifts
        (["\n\n"], ["x\n", "y\n", "\nz"], ["x", "\ny", ""], True),
        (["bcd", "c"], ["abcde"], ["ab"], True),  # "c" completes first, though "bcd" begins before it
        (["d", "bcd"], ["abcd"], ["a"], True),  # both complete at once: the longer one leaves nothing of itself
        (["ab", "abc"], ["abc"], [""], True),
    ],
)
def test_table(stops: list[str], pieces: list[str], shown: list[str], matched: bool) -> None:
    assert run(stops, pieces) == (shown, matched)


def test_nothing_after_a_match() -> None:
    search = StopStrings(["x"])
    assert search.push("ax") == "a"
    assert (search.push("more"), search.flush()) == ("", "")


def first_completed(stops: list[str], text: str) -> str | None:
    """By the definition: the shortest beginning of `text` that ends in a stop string, without the longest such."""
    for end in range(1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ending))]
    return None


ALPHABET = st.text("ab", max_size=12)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.lists(ALPHABET, max_size=8))
def test_cut_in_any_way_the_text_is_the_same(stops: list[str], pieces: list[str]) -> None:
    shown, matched = run(stops, pieces)
    expected = first_completed(stops, "".join(pieces))
    assert "".join(shown) == ("".join(pieces) if expected is None else expected)
    assert matched == (expected is not None)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1), ALPHABET)
def test_no_more_is_held_than_could_begin_a_stop(stops: list[str], text: str) -> None:
    search = StopStrings(stops)
    shown = search.push(text)
    if not search.matched:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_one_that_completes_unarmed_is_text() -> None:
    stops = StopStrings(["ab", "b"])
    shown = stops.push("xa", armed=False) + stops.push("b", armed=False)
    assert not stops.matched
    assert shown + stops.push("cb") == "xabc"
    assert stops.matched


def test_one_that_begins_unarmed_and_completes_armed_ends_it() -> None:
    stops = StopStrings(["abc", "b"])
    assert stops.push("xab", armed=False) == "x"  # "b" has passed; "ab" may become "abc"
    assert stops.push("c") == ""
    assert stops.matched


def test_one_that_passed_unarmed_is_not_found_later() -> None:
    stops = StopStrings(["abc", "b"])
    assert stops.push("ab", armed=False) + stops.push("d") + stops.flush() == "abd"
    assert not stops.matched
