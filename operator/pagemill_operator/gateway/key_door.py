"""API keys before anything else: a request without one neither waits, nor wakes a deployment, nor has its body read.

One folder a deployment, as the server reads them (`pagemill.key_file`), looked at again while the gateway runs. While a folder
can't be read nobody gets in: that is said with 503, never by leaving the door open. Used by `proxy`; `gateway` says whose keys are
wanted.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable
from pathlib import Path

from pagemill import keys
from pagemill.key_file import KeyFile
from pagemill.keys import ApiKey, InvalidKeys
from pagemill_operator.gateway.errors import Unauthorized, Unavailable

LOOK_SECONDS = 1.0

_LOG = logging.getLogger(__name__)


class KeyDoor:
    """`check` on the event loop; files are read in a thread."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files: dict[str, KeyFile | None] = {}  # None: not readable so far
        self._keys: dict[str, tuple[ApiKey, ...]] = {}
        self._said: dict[str, str] = {}

    def check(self, deployment: str, authorization: str) -> None:
        """Raises Unauthorized, Unavailable."""
        known = self._keys.get(deployment)
        if known is None:
            raise Unavailable(f"The API keys of {deployment} can't be read yet.", "keys_unavailable")
        if keys.matching(known, keys.bearer(authorization.encode("utf-8", "surrogateescape"))) is None:
            raise Unauthorized(
                "Incorrect or missing API key; send it as `Authorization: Bearer KEY`.",
                "invalid_api_key",
                {"WWW-Authenticate": "Bearer"},
            )

    async def want(self, deployments: Iterable[str]) -> None:
        """Exactly these have keys from now on; what is new is read at once."""
        wanted = set(deployments)
        for gone in self._files.keys() - wanted:
            self._files.pop(gone)
            self._keys.pop(gone, None)
            self._said.pop(gone, None)
        for name in sorted(wanted - self._files.keys()):
            self._files[name] = None
        await self.look()

    async def follow(self) -> None:
        """Take over every new version of every file, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """At all of them, once."""
        for name in list(self._files):
            try:
                file = await asyncio.to_thread(self._read, name, self._files[name])
            except InvalidKeys as error:
                if self._said.get(name) != str(error):
                    _LOG.error("%s; nobody gets in", error)
                    self._said[name] = str(error)
                continue
            except Exception as error:  # noqa: BLE001  not its message, which might hold a key
                where = "".join(traceback.format_tb(error.__traceback__))
                _LOG.error("the keys of %s could not be read (%s)\n%s", name, type(error).__name__, where)
                continue
            if name in self._files:  # it may have gone meanwhile
                self._files[name], self._keys[name] = file, file.keys

    def _read(self, name: str, file: KeyFile | None) -> KeyFile:
        if file is None:
            return KeyFile(str(self._folder / name), called="keys in")
        file.look()
        return file
