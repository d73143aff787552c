"""The file or folder in which API keys stand, and what has changed in it. Blocks while it reads: never called on the event loop.

A mounted Secret is a folder whose entries are links into `..data`, a link that is swapped in one move; so the folder behind it is
read, and never half of the old and half of the new. Contents are compared, not times: a swap may keep both. Used by
the server's `key_ring` and the operator's `gateway`.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from pagemill import keys
from pagemill.keys import ApiKey, InvalidKeys

MOST_BYTES = 1 << 20  # what a Secret may hold
_SWAPPED = "..data"

_Content = bytes | tuple[tuple[str, bytes], ...]

logger = logging.getLogger(__name__)


class KeyFile:
    """`fixed` are the keys of flags, which stand beside those of the file; `called` is what named it. Raises InvalidKeys."""

    def __init__(self, path: str, fixed: tuple[ApiKey, ...] = (), called: str = "--api-key-file") -> None:
        self._path = Path(path)
        self._fixed = fixed
        self._called = f"{called} {path}"
        self._seen: _Content | None  # None: it could not be read
        try:
            self._seen = _read(self._path)
            self.keys = self._parse(self._seen)
        except InvalidKeys as error:
            raise InvalidKeys(f"{self._called}: {error}") from None

    def look(self) -> tuple[ApiKey, ...] | None:
        """The keys, where they have changed and can be taken; what can't be is said once, and the old ones stay in force."""
        try:
            content: _Content | None = _read(self._path)
            trouble = ""
        except InvalidKeys as error:
            content, trouble = None, str(error)
        if content == self._seen:
            return None
        self._seen = content
        try:
            if content is None:
                raise InvalidKeys(trouble)
            found = self._parse(content)
        except InvalidKeys as error:
            logger.error("%s: %s; the keys stay as they were", self._called, error)
            return None
        changed, self.keys = found != self.keys, found
        logger.info("%s: read again: %s", self._called, ", ".join(key.name for key in found) or "no key")
        return found if changed else None

    def _parse(self, content: _Content) -> tuple[ApiKey, ...]:
        own = keys.of_document(content) if isinstance(content, bytes) else keys.of_files(content)
        return keys.distinct([*self._fixed, *own])


def _read(path: Path) -> _Content:
    try:
        if not path.is_dir():
            return _bytes(path)
        folder = path / _SWAPPED if (path / _SWAPPED).is_dir() else path
        names = sorted(entry.name for entry in folder.resolve().iterdir() if not entry.name.startswith("."))
        if len(names) > keys.MOST_KEYS:
            raise InvalidKeys(f"there are {len(names)} files; at most {keys.MOST_KEYS} keys are taken")
        return tuple((name, _bytes(folder.resolve() / name)) for name in names)
    except OSError as error:
        raise InvalidKeys(f"it can't be read: {error.strerror or error}") from None


def _bytes(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):
        raise InvalidKeys(f"{path.name} is not a file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InvalidKeys(f"{path.name} is larger than {MOST_BYTES} bytes")
    return content
