"""A file that is made from code: written, or held against what the code says. Used by `crd` and `rbac`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_check(argv: Sequence[str], file: Path, text: str, source: str, module: str) -> int:
    """`--write` the file, or `--check` that it is what the `source` says (1 when it is not)."""
    if list(argv) == ["--write"]:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return 0
    if list(argv) == ["--check"]:
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write(f"{file.name} is not what the {source} say: run `make crds`\n")
        return 1
    sys.stderr.write(f"usage: python -m {module} --write|--check\n")
    return 2
