"""Where the testbed keeps what is slow to make: `$PAGEMILL_CACHE`, by default `~/.cache/pagemill`.

Owns the folder's place, a lock so that two runs never make the same thing at once, and hashes that
name what is kept after its inputs. Knows nothing of what is made. Called by binaries and images.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def cache_root() -> Path:
    """The root of everything Pagemill keeps between runs on this machine."""
    chosen = os.environ.get("PAGEMILL_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "pagemill"


def cluster_cache() -> Path:
    """The testbed's own folder in the cache; made when it is missing."""
    folder = cache_root() / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def hash_files(files: Iterable[Path], *extra: str) -> str:
    """Sixteen hexadecimal digits that change when a file's content or an extra string does."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    for text in extra:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the lock `name` among all runs on this machine; the kernel drops it if the holder dies."""
    with (cluster_cache() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run that holds {name}.lock", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
