"""Debian's Prometheus: the one on the PATH, or its package unpacked into the cache. Nothing is installed, and no service runs.

Knows nothing of what it is asked. Called by conftest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.testbed.cache import cache_root

PACKAGE = "prometheus"


class NotPossibleHere(Exception):
    """There is no Prometheus, and its package can't be had; the message says what to do."""


def prometheus() -> str:
    """The program's path. Raises NotPossibleHere, and RuntimeError where it should be to be had and is not."""
    if (found := shutil.which(PACKAGE)) is not None:
        return found
    kept = cache_root() / PACKAGE / "usr" / "bin" / PACKAGE
    if not kept.exists():
        _fetch(cache_root())
    return str(kept)


def _fetch(cache: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotPossibleHere(f"these tests need the program {PACKAGE} on the PATH (https://prometheus.io/download)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        folder = Path(made)
        if _download(folder).returncode != 0:  # never updated, or too long ago for what the mirror has
            if os.geteuid() != 0:
                raise NotPossibleHere(
                    f"these tests need the package {PACKAGE}: sudo apt-get update, or sudo apt-get install {PACKAGE}"
                )
            _run(["apt-get", "update"], folder)
            outcome = _download(folder)
            if outcome.returncode != 0:  # no reason to skip: a suite that skips would look green
                raise RuntimeError(f"`apt-get download {PACKAGE}` failed: {outcome.stderr.strip()[-500:]}")
        (package,) = folder.glob("*.deb")
        unpacked = folder / "unpacked"
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        shutil.rmtree(cache / PACKAGE, ignore_errors=True)
        unpacked.rename(cache / PACKAGE)


def _download(folder: Path) -> subprocess.CompletedProcess[str]:
    return _run(["apt-get", "download", PACKAGE], folder)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
