"""A failure survives the way from the server's last line to the operator."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.endpoints import TERMINATION_LOG_ENV
from pagemill.failures import (
    TERMINATION_LIMIT,
    Failure,
    FailureReason,
    PagemillError,
    parse_termination,
    write_termination,
)


@pytest.mark.parametrize("reason", FailureReason)
def test_every_reason_comes_back_and_is_fit_for_a_condition(reason: FailureReason) -> None:
    failure = Failure(reason, "what to do", {"maxModelLen": 512})
    assert parse_termination(failure.to_line()) == failure
    assert reason.value[0].isupper()
    assert reason.value.isalnum()


@pytest.mark.parametrize("letter", ["x", "ä", "\N{GRINNING FACE}", '"', "\n"])
@pytest.mark.parametrize("length", [0, 100, 4000, 4096, 5000, 50_000])
def test_the_written_file_fits_what_the_kubelet_keeps(tmp_path: Path, letter: str, length: int) -> None:
    log = tmp_path / "termination-log"
    write_termination(Failure(FailureReason.MODEL_INVALID, letter * length), {TERMINATION_LOG_ENV: str(log)})
    kept = log.read_bytes()[-TERMINATION_LIMIT:]  # the kubelet reads a file's end
    found = parse_termination(kept.decode("ascii"))
    assert found is not None
    assert found.reason is FailureReason.MODEL_INVALID
    assert (letter * length).startswith(found.message)
    if length == 100:
        assert found.message == letter * length


def test_a_suggestion_that_is_too_long_goes_before_the_reason() -> None:
    line = Failure(FailureReason.OUT_OF_MEMORY, "m", {f"field{n}": n for n in range(2000)}).to_line()
    assert len(line) < TERMINATION_LIMIT
    assert parse_termination(line) == Failure(FailureReason.OUT_OF_MEMORY, "", {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "panic: runtime error",
        "[1, 2]",
        "null",
        '"ModelInvalid"',
        '{"reason": "SomethingElse", "message": "of another image"}',
        '{"reason": ["ModelInvalid"]}',
        '{"message": "no reason"}',
        "[" * 4096,
        '{"a":' * 800,
    ],
)
def test_what_other_programs_leave_is_no_failure(text: str) -> None:
    assert parse_termination(text) is None


@given(st.text())
def test_no_text_ends_in_an_exception(text: str) -> None:
    assert parse_termination(text) is None


def test_the_last_line_that_parses_wins_and_odd_suggestions_are_dropped() -> None:
    first = Failure(FailureReason.LOAD_STALLED, "first").to_line()
    second = json.dumps({"reason": "OutOfMemory", "message": "second", "suggestion": {"a": 1, "b": [2], "c": None}})
    found = parse_termination(f"log line\n{first}\n{second}\ntrailing noise\n")
    assert found == Failure(FailureReason.OUT_OF_MEMORY, "second", {"a": 1})
    no_mapping = json.dumps({"reason": "OutOfMemory", "message": "m", "suggestion": [1]})
    assert parse_termination(no_mapping) == Failure(FailureReason.OUT_OF_MEMORY, "m", {})


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    write_termination(Failure(FailureReason.CUDA_ERROR, "m"), {})
    write_termination(Failure(FailureReason.CUDA_ERROR, "m"), {TERMINATION_LOG_ENV: str(tmp_path / "no" / "such")})
    assert list(tmp_path.iterdir()) == []


def test_names_out_of_damaged_files_stay_one_line_that_utf8_can_hold() -> None:
    error = PagemillError(FailureReason.MODEL_INVALID, "tensor a\nb\r\n\tc \udcff is damaged")
    assert str(error) == "tensor a b c \\udcff is damaged"
    assert error.failure.message == str(error)
    str(error).encode("utf-8")
