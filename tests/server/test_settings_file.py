"""`--settings-file`: what it says goes before the flags, and what can't be is one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.cli import parse

ALL = {
    "policy": "priority",
    "aging_seconds": 5,
    "ttft_ms": 250,
    "weights": {"a": 2.5},
    "max_num_queued_reqs": 7,
    "max_num_queued_tokens": None,
}


def test_it_goes_before_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(ALL))
    flags = ["org/name", "--scheduling-policy", "fair", "--max-num-queued-tokens", "3", "--max-num-seqs", "9"]
    scheduler = parse([*flags, "--settings-file", str(file)], {}).scheduler
    assert (scheduler.policy, scheduler.aging_seconds, scheduler.ttft_ms) == ("priority", 5, 250)
    assert scheduler.weights == (("a", 2.5),)
    assert (scheduler.max_num_queued_reqs, scheduler.max_num_queued_tokens) == (7, None)
    assert scheduler.max_num_seqs == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "can't be read"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "does not hold a JSON object"),
        ('{"block_size": 3}', "block_size is not a setting"),
        ('{"ttft_ms": 0}', "ttft_ms must be a number above 0"),
        ('{"policy": "no.such:Class"}', "There is no|was not found"),
    ],
)
def test_what_it_cannot_hold(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "settings.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PagemillError, match=says) as error:
        parse(["org/name", "--settings-file", str(file)], {})
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert "\n" not in str(error.value)
