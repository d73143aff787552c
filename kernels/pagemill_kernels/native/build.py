"""Compiles the library of native CPU kernels, once for each instruction set: `python build.py` where a C++ compiler is.

The standard library alone, so that it runs before anything is installed. A file's name holds a digest of the sources and flags,
so that a stale one is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "lib"
# GCC 12 takes the undefined vectors inside its own AVX-512 intrinsics for faults of ours.
COMMON = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
_AVX512_BF16_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16")
_AVX512_BF16 = (*_AVX512, "-mavx512bf16")
# By name, the best last; /proc/cpuinfo's flags that each needs, and the compiler's.
INSTRUCTION_SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx2": (("avx2", "fma", "f16c", "bmi2"), _AVX2),
    "avx512": (("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"), _AVX512),
    "avx512_bf16": (_AVX512_BF16_FLAGS, _AVX512_BF16),
    "amx_bf16": ((*_AVX512_BF16_FLAGS, "amx_tile", "amx_bf16"), (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16")),
}


def sources() -> list[Path]:
    return sorted(HERE.glob("*.cpp"))


def digest() -> str:
    """Of what the library is made of."""
    told = hashlib.sha256(repr((COMMON, INSTRUCTION_SETS)).encode())
    for path in sorted([*HERE.glob("*.h"), *sources()]):
        told.update(path.name.encode() + b"\0" + path.read_bytes())
    return told.hexdigest()[:12]


def library(name: str) -> Path:
    """Where the library for an instruction set lies when it is built."""
    return FOLDER / f"libpagemill-{name}-{digest()}.so"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


def build() -> list[Path]:
    """Whatever is missing; raises CalledProcessError with the compiler's words, RuntimeError where there is no compiler."""
    if platform.machine() != "x86_64":
        raise RuntimeError(f"there are no native kernels for {platform.machine()}: torch computes")
    missing = {name: library(name) for name in INSTRUCTION_SETS if not library(name).exists()}
    found = compiler()
    if missing and found is None:
        raise RuntimeError("no C++ compiler: install g++, or let torch compute")
    FOLDER.mkdir(exist_ok=True)
    for name, path in missing.items():
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / path.name
            command = [str(found), *COMMON, *INSTRUCTION_SETS[name][1], "-o", str(made), *map(str, sources())]
            subprocess.run(command, check=True)
            made.replace(path)
        for old in FOLDER.glob(f"libpagemill-{name}-*.so"):
            if old != path:
                old.unlink()
    return [library(name) for name in INSTRUCTION_SETS]


if __name__ == "__main__":
    try:
        for built in build():
            print(built)  # noqa: T201  a command of its own
    except RuntimeError as error:
        sys.exit(str(error))
