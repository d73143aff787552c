"""A drain: unready, a lame duck's time in which everything is still served, then 503 for what is new while what runs may finish;
what outlasts its time ends with an error.

A signal's drain is the last thing that a server does (`finish`, called by `serve`). One that was asked for on the management port
(`begin`) leaves the server there, answering 503, and can be called off. Knows neither signals nor HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from pagemill_server.api.service import Service
from pagemill_server.config import ServerConfig
from pagemill_server.lifecycle import Phase

logger = logging.getLogger(__name__)

_TICK = 0.1  # seconds between the looks at what was on its way into the engine when it was told to end everything


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    lame_duck: float  # in which new requests are still served
    timeout: float  # that what runs then gets to finish


class DrainIsFinal(Exception):
    """The process was told to stop: there is no way back."""


class Drain:
    """On the event loop's thread."""

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.default = Patience(config.lame_duck_seconds, config.shutdown_timeout)
        self._service = service
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._final = False
        self._lame_duck_ends = 0.0  # time.monotonic() seconds

    @property
    def draining(self) -> bool:
        return self._service.lifecycle.phase is Phase.DRAINING

    @property
    def drained(self) -> bool:
        """Nothing is taken any more, and nothing runs."""
        return self.draining and self._service.lifecycle.refusing and not self._service.in_flight

    def begin(self, patience: Patience) -> None:
        """One that can be called off; where there is one already, that one goes on as it is."""
        if not self.draining:
            self._enter(patience)
            self._task = asyncio.create_task(self._run(patience))

    async def call_off(self) -> None:
        """Serve again. Raises DrainIsFinal."""
        if self._final:
            raise DrainIsFinal
        if self.draining:
            await self._cancel()
            if self._final:  # since it was asked
                raise DrainIsFinal
            self._service.ending.clear()
            self._service.lifecycle.refusing = False
            self._service.lifecycle.enter(Phase.SERVING)
            logger.info("the drain is called off: serving again")

    async def finish(self) -> None:
        """The last one, or the last part of one that runs: its lame duck's time isn't begun again. What is still there at its
        end is told so, and the engine's to end."""
        self._final = True
        left = self.default.lame_duck
        if self.draining:
            await self._cancel()
            left = min(left, max(0.0, self._lame_duck_ends - time.monotonic()))
        patience = Patience(left, self.default.timeout)
        self._enter(patience)
        await self._wind_down(patience)
        self._hurry.clear()

    def hurry(self) -> None:
        """Skip the waiting."""
        self._hurry.set()

    async def until_idle(self, seconds: float) -> None:
        """Until no request is in flight, for so long at most; hurry ends the wait."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._service.idle, self._hurry)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _enter(self, patience: Patience) -> None:
        self._service.lifecycle.enter(Phase.DRAINING)
        self._lame_duck_ends = time.monotonic() + patience.lame_duck
        logger.info(
            "draining: in_flight=%d lame_duck=%gs timeout=%gs",
            self._service.in_flight,
            patience.lame_duck,
            patience.timeout,
        )

    async def _run(self, patience: Patience) -> None:
        await self._wind_down(patience)
        loaded = self._service.loaded
        while loaded is not None and self._service.in_flight:
            loaded.engine.abort_all()
            await self.until_idle(_TICK)
        logger.info("drained")

    async def _wind_down(self, patience: Patience) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), patience.lame_duck)
        self._service.lifecycle.refusing = True
        await self.until_idle(patience.timeout)
        self._service.ending.set()
        if self._service.in_flight:
            logger.warning("ending what still runs: in_flight=%d", self._service.in_flight)

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
