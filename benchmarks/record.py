"""Results on disk: what was measured, beside the machine that it was measured on. Every benchmark's `--out` writes through here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine


def write(path: Path, here: machine.Machine, body: Mapping[str, Any]) -> None:
    """One JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": here.as_json(), "machine_line": here.line(), **body}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Markdown, columns aligned, as it goes into the docs."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
    )
