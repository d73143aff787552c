"""The keys in force: who a key is, whether one is needed, and what keeps one key's cached prompts from another's.

The event loop's thread only, but for the file, which is looked at in a thread (`follow`). Made by `serve`; `auth` asks it at every
request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import traceback
from collections.abc import Callable, Sequence

from pagemill import keys
from pagemill.key_file import KeyFile
from pagemill.keys import ApiKey

LOOK_SECONDS = 1.0  # between two looks at the file

logger = logging.getLogger(__name__)


class KeyRing:
    """Of flags and a file. Raises InvalidKeys."""

    def __init__(self, flags: Sequence[str] = (), path: str | None = None) -> None:
        fixed = keys.of_flags(flags)
        self._file = None if path is None else KeyFile(path, fixed)
        self.required = bool(fixed) or path is not None  # a file that holds no key opens nothing
        self._seen: set[bytes] = set()  # digests of all keys that there were
        self.keys: tuple[ApiKey, ...] = ()
        self._take(fixed if self._file is None else self._file.keys)

    def find(self, given: bytes) -> ApiKey | None:
        return keys.matching(self.keys, given)

    def salt(self, key: ApiKey) -> str:
        """What the key's requests are salted with; "" while there has been no other key.

        A key that was removed counts: what is cached of its prompts is nobody else's.
        """
        if len(self._seen) < 2:
            return ""
        tagged = b"key\0" + key.digest if key.cache_group is None else b"group\0" + key.cache_group.encode()
        return hashlib.sha256(b"pagemill key's cache 1\0" + tagged).hexdigest()

    def weights(self) -> dict[str, float]:
        """Of the keys that have one, by name."""
        return {key.name: key.weight for key in self.keys if key.weight is not None}

    async def follow(self, changed: Callable[[], None], pause: float = LOOK_SECONDS) -> None:
        """Take over every new version of the file, until cancelled; then `changed` is called."""
        while self._file is not None:
            await asyncio.sleep(pause)
            try:
                found = await asyncio.to_thread(self._file.look)
                if found is not None:
                    self._take(found)
                    changed()
            except Exception as error:  # noqa: BLE001  not its message, which might hold a key
                where = "".join(traceback.format_tb(error.__traceback__))
                logger.error(
                    "the keys could not be read again (%s) and stay as they were\n%s", type(error).__name__, where
                )

    def _take(self, found: tuple[ApiKey, ...]) -> None:
        self.keys = found
        self._seen.update(key.digest for key in found)
