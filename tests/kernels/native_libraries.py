"""The libraries of native kernels that this processor can run, for tests to go through one by one."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest

from pagemill_kernels.native import build, library
from pagemill_kernels.native.matrix import Pool

INSTRUCTION_SETS = tuple(build.INSTRUCTION_SETS)


def use_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While a fixture yields from this, `library.load` gives the library for the instruction set; skips where it can't be run."""
    needed, _ = build.INSTRUCTION_SETS[name]
    if not library.processor_flags().issuperset(needed):
        pytest.skip(f"this processor has no {name}")
    if not build.library(name).exists():
        pytest.skip("the native kernels are not built (make native)")
    monkeypatch.setenv("PAGEMILL_NATIVE", name)
    library.load.cache_clear()
    if name == "amx_bf16" and _computes_with() != name:
        library.load.cache_clear()
        pytest.skip(
            "the kernel gives this process no tiles, or they fail the library's check: it computes with vectors"
        )
    yield
    library.load.cache_clear()


def _computes_with() -> str:
    return str(library.loaded().pm_isa().decode())


def pool(threads: int) -> Pool:
    """One of the library in use, the same for all tests: threads are not started for each of them."""
    return _pool(os.environ["PAGEMILL_NATIVE"], threads)


@functools.cache
def _pool(instruction_set: str, threads: int) -> Pool:
    return Pool(threads)
