"""Checks a fetched file against what the hub says of it. Called by `hub`."""

from __future__ import annotations

import hashlib
from pathlib import Path


def matches(path: Path, *, size: int, sha256: str | None, git_sha1: str | None) -> bool:
    """Whether size and the checksum that is known agree; a file with no checksum is checked by size alone.

    git's blob id is sha1 over `blob <size>\\0` and the content (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
    """
    if path.stat().st_size != size:
        return False
    if sha256:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    if git_sha1 and len(git_sha1) == 40:
        digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest() == git_sha1
    return True
