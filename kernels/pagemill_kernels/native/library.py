"""Finds and loads the native library for this processor; None where it is not built or the processor is too old.

`PAGEMILL_NATIVE` names an instruction set to use instead of the best one, or `0`: none. Called by the server's model. The library
for `amx_bf16` computes as `avx512_bf16` does, and `pm_isa` says so, where the kernel refuses tiles or they fail its check.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from pagemill_kernels.native import build, functions


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, its functions with their types, or None."""
    asked = os.environ.get("PAGEMILL_NATIVE", "")
    if asked == "0":
        return None
    flags = processor_flags()
    for name, (needed, _) in reversed(build.INSTRUCTION_SETS.items()):
        path = build.library(name)
        if asked in ("", name) and flags.issuperset(needed) and path.exists():
            library = ctypes.CDLL(str(path))
            functions.declare(library)
            return library
    return None


def loaded() -> ctypes.CDLL:
    """The library; RuntimeError where there is none, which whoever chose the native kernels has asked before."""
    found = load()
    if found is None:
        raise RuntimeError("the native kernels are not built for this processor")
    return found


def let_go_of_files() -> None:
    """Libraries' pages that were read stay this process's until it gives them back: what is used again comes in again, from the
    system's own copy of the file. Nothing happens where there is no library."""
    if (found := load()) is not None:
        found.pm_let_go_of_files()


def processor_flags() -> frozenset[str]:
    """What /proc/cpuinfo says that the first processor can do; nothing where there is no such file."""
    return frozenset(_processor("flags").split())


def processor_vendor() -> str:
    """Who made it, in its own word: "GenuineIntel", "AuthenticAMD"."""
    return _processor("vendor_id")


def _processor(field: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == field), "")
