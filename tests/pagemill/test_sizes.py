"""Sizes as people write them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.failures import FailureReason, PagemillError
from pagemill.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512B", 512),
        ("80MiB", 80 * 1024**2),
        ("80Mi", 80 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1.5GB", 1_500_000_000),
        (" 2 GiB ", 2 * 1024**3),
        ("3TiB", 3 * 1024**4),
        ("1.1KiB", 1126),
        ("9007199254740993", 9007199254740993),  # above what a float can tell apart
    ],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1GiB",
        "0",
        "0.0001",
        "1gib",
        "1 G",
        "1e9",
        "1,5GB",
        "inf",
        "nan",
        "٣MiB",
        "9" * 5000,
        "1.2.3MiB",
        "2GiB x",
    ],
)
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(PagemillError, match="80MiB") as caught:
        parse_size(text)
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@given(st.text())
def test_no_text_ends_in_another_exception(text: str) -> None:
    with suppress(PagemillError):
        assert parse_size(text) > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98362432, "93.8 MiB"),
        (3 * 1024**4, "3.0 TiB"),
        (1024**5, "1024.0 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text
