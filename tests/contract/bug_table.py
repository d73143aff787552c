"""Bugs that others had, and the tests of ours that would find them here: a table's shape, and a look that its tests are there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Bug:
    """`tests` are file::name, without `tests/` and `.py`."""

    symptom: str
    seen: str
    tests: tuple[str, ...]


def bug(symptom: str, seen: str, *tests: str) -> Bug:
    return Bug(symptom, seen, tests)


def missing(found: Bug) -> list[str]:
    """Of its tests, those that are not there."""
    parts = [test.partition("::") for test in found.tests]
    return [f"{file}::{name}" for file, _, name in parts if name not in _names(file)]


@cache
def _names(file: str) -> frozenset[str]:
    """What a file of tests has at its top."""
    made = set()
    for node in ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Assign):
            made |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(made)
