"""docs/flags.md is what the parser says, and says all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill_server import flag_reference
from pagemill_server.flags import make_parser
from pagemill_server.vllm_flags import VLLM_FLAGS


def test_the_file_is_what_the_parser_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert flag_reference.main(["--check"]) == 0, capsys.readouterr().err


def test_every_flag_is_there_once() -> None:
    rows = flag_reference.text().split("\n")
    names = [
        name for action in make_parser()._actions for name in action.option_strings if name not in ("-h", "--help")
    ]
    assert {name for flag in VLLM_FLAGS for name in flag.names} < set(names)
    for name in names:
        assert sum(row.startswith("| ") and f"`{name}`" in row.split(" | ")[0] for row in rows) == 1, name


def test_a_rows_cells() -> None:
    row = "| `--block-size` | TOKENS | 16 | tokens a block |"
    switch = "| `--enable-prefix-caching`, `--no-enable-prefix-caching` |  | on | prompts that begin alike share their blocks |"
    choice = "| `--task` | `auto` or `generate` or `embed` | auto | auto is what the model was made for |"
    assert {row, switch, choice} < set(flag_reference.text().split("\n"))


def test_a_drift_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(flag_reference, "FILE", tmp_path / "flags.md")
    assert flag_reference.main(["--check"]) == 1
    assert "run `make flags`" in capsys.readouterr().err
    assert flag_reference.main(["--write"]) == 0
    assert flag_reference.main(["--check"]) == 0
    assert flag_reference.main([]) == 2
