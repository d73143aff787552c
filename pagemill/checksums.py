"""Checks a fetched file against what the hub says of it. Called by `hub`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 20


def matches(
    path: Path, *, size: int, sha256: str | None, git_sha1: str | None, moved: Callable[[], None] = lambda: None
) -> bool:
    """Whether size and the checksum that is known agree; a file with no checksum is checked by size alone. `moved` is called
    while it reads: a large file takes minutes.

    git's blob id is sha1 over `blob <size>\\0` and the content (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
    """
    if path.stat().st_size != size:
        return False
    if sha256:
        digest, expected = hashlib.sha256(), sha256
    elif git_sha1 and len(git_sha1) == 40:
        digest, expected = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False), git_sha1
    else:
        return True
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            moved()
    return digest.hexdigest() == expected
