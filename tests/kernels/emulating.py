"""Compiles the library's loops over tiles with tiles of plain C++, so that they are tested wherever there is a compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pagemill_kernels.native import build, library

HERE = Path(__file__).parent
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-DPAGEMILL_EMULATED_TILES"),
)


def compile_emulated(
    folder: Path, source: str | None, others: Sequence[str] = (), instruction_set: str | None = None
) -> Path:
    """A library from a source beside this, if one is named, and others of the native library's; skips where that can't be done."""
    found = build.compiler()
    if found is None:
        pytest.skip("no C++ compiler: install g++")
    needed, flags = build.INSTRUCTION_SETS[instruction_set] if instruction_set else ((), ())
    if not library.processor_flags().issuperset(needed):
        pytest.skip(f"this processor has no {instruction_set}")
    made = folder / "emulated.so"
    sources = [*([str(HERE / source)] if source else []), *(str(build.HERE / other) for other in others)]
    command = [found, *FLAGS, *flags, f"-I{build.HERE}", f"-I{HERE}", "-o", str(made), *sources]
    subprocess.run(command, check=True, timeout=240)
    return made
